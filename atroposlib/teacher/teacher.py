"""One teacher: scores sequences with its servers and its cache, and knows when it is no longer the same."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

import aiohttp
import numpy as np
from numpy.typing import NDArray

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.errors import AtroposError, ConfigError, TeacherError
from atroposlib.teacher import canary, decoding
from atroposlib.teacher.attempts import Attempts
from atroposlib.teacher.cache import ScoreCache, key_of
from atroposlib.teacher.joining import Joining
from atroposlib.teacher.persistence import Deadline, Passing, persist
from atroposlib.teacher.pool import ReplicaPool
from atroposlib.teacher.probing import PROBE_IDS
from atroposlib.teacher.protocol import Capabilities, LogprobDtype, Question
from atroposlib.teacher.quarantine import Quarantine
from atroposlib.teacher.questions import made, nothing
from atroposlib.teacher.replica import Replica
from atroposlib.teacher.stats import TeacherStats
from atroposlib.teacher.transport import open_session
from atroposlib.types import TeacherScores

logger = logging.getLogger(__name__)


class Teacher:
    """Scores sequences; a :class:`atroposlib.teacher.protocol.Scorer`.

    Each question goes to the least loaded of the teacher's servers and is repeated, there or elsewhere, while
    its failure may pass. Equal questions in flight are asked once. How each server is asked is found out when
    it is first needed.

    Args:
        name: Its name in errors, logs and metrics.
        servers: One config a server; all serve the same model.
        limits: How much is asked of a server, and for how long.
        cache: Scores that were asked before; None for none. Its owner closes it.
        tokenizer: Fingerprint of the teacher's tokenizer, empty where nobody knows it.
        dtype: In which type a binary route sends the top-k's logprobs.
        steady: Whether the weights never change. A server that then scores the canary differently from the
            first one is set aside (teacher.changed). False for a student that is asked as a teacher.

    Attributes:
        name: As above.
        stats: What it was asked and what became of it.
        replicas: Its servers, in the order of their configs.

    Raises:
        ConfigError: No servers, an unusable base_url, or a cache for weights that change.
    """

    def __init__(
        self,
        name: str,
        servers: Sequence[APIServerConfig],
        limits: TeacherLimits = TeacherLimits(),  # noqa: B008 - frozen
        *,
        cache: ScoreCache | None = None,
        tokenizer: str = "",
        dtype: LogprobDtype = "float32",
        steady: bool = True,
    ) -> None:
        if not servers:
            raise ConfigError("a teacher without a server", where=f"teacher {name}", fix="set base_url")
        if cache is not None and not steady:
            raise ConfigError("scores of weights that change cannot be kept", where=f"teacher {name}")
        self.name = name
        self.stats = TeacherStats(name, max(config.rolling_buffer_length for config in servers))
        self.replicas = [Replica(config, limits.patience_s) for config in servers]
        self._limits = limits
        self._cache = cache
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._steady = steady
        self._canary: NDArray[np.float32] | None = None
        self._fingerprint = ""
        self._session: aiohttp.ClientSession | None = None
        self._quarantine = Quarantine()
        self._joining: Joining[TeacherScores] = Joining()
        self._pool = ReplicaPool(
            name,
            self.replicas,
            tokens_in_flight=limits.tokens_in_flight,
            try_out=self._try_out,
            on_aside=lambda error: self.stats.aside.update([error.code]),
        )

    @property
    def capabilities(self) -> list[Capabilities]:
        """What the servers that were probed so far can, in their order."""
        return [replica.capabilities for replica in self.replicas if replica.capabilities is not None]

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session that all requests share, opened in the running loop when first needed."""
        if self._session is None:
            self._session = open_session(self.stats.traffic())
            decoding.retain()
        return self._session

    async def score(
        self,
        ids: Sequence[int],
        k: int,
        start: int = 1,
        extra_ids: NDArray[np.int32] | None = None,
        *,
        template: str = "",
    ) -> TeacherScores:
        """The teacher's logprobs of ``ids`` [T] from position ``start`` on, and of its top-k at each of them.

        Args:
            ids: Token ids in the teacher's vocabulary.
            k: Top-k tokens at each position; 0 for the token that stands there alone.
            start: First position that is scored, at least 1. None are when it is T, and nobody is asked.
            extra_ids: int32 [T - start, E], more ids to score at each position.
            template: By what context that only the teacher sees was rendered; part of the cache's key.

        Returns:
            R = T - start rows, K = k + 1 columns. The arrays are read-only, since others may have them too.

        Raises:
            TeacherUnreachable: No server answered within the patience.
            TeacherError: Refused, failed, quarantined, changed, or not the scores that were asked for.
            UsageError: ``k`` or ``start`` out of range.
        """
        question = made(ids, k, start, extra_ids, self._dtype)
        with self.stats.sequence(len(question.ids)):
            if question.start >= len(question.ids):
                return nothing(question, self._tokenizer)
            key = key_of(question, "", template) + question.start.to_bytes(8, "little")
            self.stats.joined += key in self._joining
            return await self._joining.run(key, lambda: self._answer(question, template))

    async def _answer(self, question: Question, template: str) -> TeacherScores:
        if self._cache is None:
            return await self._ask(question)
        if not self._fingerprint:
            # Only a server can say which teacher this is.
            await self._meet_one()
        key = key_of(question, self._fingerprint, template)
        kept = await self._cache.get(key, question.start)
        if kept is not None:
            self.stats.cache_hits += 1
            return _read_only(kept)
        scores = await self._ask(question)
        # A server that did not score the caller's own ids may learn to.
        if question.extra_ids is None or scores.extra_logprobs is not None:
            await self._cache.put(key, scores)
        return scores

    async def _ask(self, question: Question) -> TeacherScores:
        began = time.monotonic()
        attempts = Attempts(question, self.session, self._pool, self._quarantine, self.stats)
        scores = await attempts.run(self._limits.patience_s)
        self.stats.seconds.append(time.monotonic() - began)
        return _read_only(replace(scores, tokenizer=scores.tokenizer or self._tokenizer))

    async def _meet_one(self) -> None:
        """Return once a server has scored the canary."""
        deadline = Deadline(self._limits.patience_s)
        try:
            async with deadline, self._pool.turn(0, set(), deadline):
                pass
        except TimeoutError as late:
            if not deadline.passed:
                raise
            raise self._pool.trouble(self.replicas) from late

    async def _try_out(self, replica: Replica) -> None:
        logprobs = await replica.try_out(self.session, with_canary=self._steady)
        if logprobs is None:
            return
        self.stats.canaries += 1
        distance = canary.difference(logprobs, await self._reference(replica, logprobs))
        if distance > canary.TOLERANCE:
            raise TeacherError(
                "a server holds another model than the teacher's: it scores the canary differently",
                code="teacher.changed",
                where=replica.peer.root,
                got=f"{distance:.3g} nats apart in the mean",
                expected=f"<= {canary.TOLERANCE}",
                fix="serve the model that it served before, or start the run anew with this one",
            )

    async def _reference(self, replica: Replica, logprobs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The teacher's own logprobs of the canary: ``logprobs``, unless another server was quicker."""
        if self._canary is None:
            model = replica.capabilities.model if replica.capabilities is not None else ""
            base = f"{model}\n{self._tokenizer}"
            generation = 0 if self._cache is None else await self._cache.generation(base, logprobs)
            if self._canary is None:
                self._canary = logprobs
                self._fingerprint = f"{base}\n{generation}"
        return self._canary

    async def connect(self, k: int, *, patience_s: float | None = None) -> list[Capabilities]:
        """Try every server now, and ask it for the top-``k`` of a few tokens.

        Args:
            k: Top-k that will be asked for.
            patience_s: Seconds over which a server that is down is tried again; None for the limits' own.

        Returns:
            What the servers can; why one of them cannot be used is logged.

        Raises:
            TeacherError: Why the first one cannot be used, when none can.
        """
        patience = self._limits.patience_s if patience_s is None else patience_s
        meetings = (persist(partial(self._meet, one, k), patience_s=patience) for one in self.replicas)
        results = await asyncio.gather(*meetings, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if not isinstance(error, AtroposError):
                raise error
        if len(errors) == len(self.replicas):
            raise errors[0]
        for error in errors:
            logger.warning("teacher %s: a server cannot be used: %s", self.name, error)
        return self.capabilities

    async def _meet(self, replica: Replica, k: int) -> None:
        if not await self._pool.proves_fit(replica):
            trouble = replica.trouble
            if replica.breaker.state == "aside" or trouble.timed_out:
                raise trouble
            raise Passing(trouble, "down")
        await replica.ask(self.session, Question(np.array(PROBE_IDS, dtype=np.int32), k))

    async def close(self) -> None:
        """End everything in flight and close all connections; who still waits for scores is cancelled."""
        await self._joining.close()
        await self._pool.close()
        if self._session is not None:
            await self._session.close()
            self._session = None
            decoding.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _read_only(scores: TeacherScores) -> TeacherScores:
    for array in (scores.ids, scores.logprobs, scores.extra_logprobs):
        if array is not None:
            array.flags.writeable = False
    return scores

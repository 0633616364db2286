"""One server of a teacher: its route, its load, its breaker, and the proof that it holds the right model."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from time import monotonic

import aiohttp
import numpy as np
from numpy.typing import NDArray

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import AtroposError, TeacherError, TeacherUnreachable
from atroposlib.teacher import canary
from atroposlib.teacher.breaker import Breaker
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.probing import find_route
from atroposlib.teacher.protocol import Capabilities, Question, Route
from atroposlib.teacher.transport import KEEP_ALIVE_S, TEACHER, peer_of, refused, send
from atroposlib.types import TeacherScores

HEALTH_TIMEOUT_S = 5.0

PROBE_K = 1
"""Top-k of the question that finds the route. To ask for too large a one is the caller's mistake."""


class Replica:
    """A server as its pool sees it.

    Args:
        config: Its settings.
        patience_s: Seconds after which a single request is given up, if its ``timeout`` is not shorter.

    Attributes:
        breaker: Whether it may be asked.
        way: How it is asked and what it can; None before it was probed, and after it was gone.
        capabilities: What probing it last showed, None before that.
        tokens: Tokens in work; ``requests`` the questions they belong to.
        last_turn: Number, among all of the pool's, of the last turn that it was given.
        bad_replies: Replies in a row that could not be used.
    """

    def __init__(self, config: APIServerConfig, patience_s: float) -> None:
        self.config = config
        peer = peer_of(config, TEACHER)
        self.peer = replace(peer, timeout_s=min(peer.timeout_s, patience_s))
        self.breaker = Breaker()
        self.way: tuple[Route, Capabilities] | None = None
        self.capabilities: Capabilities | None = None
        self.tokens = 0
        self.requests = 0
        self.last_turn = 0
        self.bad_replies = 0
        self._alive_at = 0.0

    @property
    def trouble(self) -> AtroposError:
        """Its last failure, for one caller: an exception that several raise collects all their tracebacks."""
        if self.breaker.trouble is not None:
            return copy(self.breaker.trouble)
        silent = TeacherUnreachable("the teacher server gave no answer in time", where=self.peer.root)
        silent.timed_out = True
        return silent

    @property
    def ready(self) -> bool:
        """Whether it may be asked now.

        After :data:`KEEP_ALIVE_S` without a question the connections are closed, and what answers at the next
        one may be another process with another model: it is tried with the canary first.
        """
        quiet = self.requests == 0 and monotonic() - self._alive_at > KEEP_ALIVE_S
        return self.breaker.state == "closed" and not quiet

    def has_room(self, tokens: int, limit: int) -> bool:
        """Whether ``tokens`` more stay within ``limit``; a question longer than that goes alone."""
        fits = self.tokens == 0 or self.tokens + tokens <= limit
        return fits and self.requests < self.config.num_max_requests_at_once

    def take(self, tokens: int, turn: int) -> None:
        """Count a question of so many tokens as in work, by the number of its turn."""
        self.tokens += tokens
        self.requests += 1
        self.last_turn = turn

    def give_back(self, tokens: int) -> None:
        """The question is no longer in work."""
        self.tokens -= tokens
        self.requests -= 1

    async def ask(self, session: aiohttp.ClientSession, question: Question) -> TeacherScores:
        """The checked answer, without extra ids if it cannot; raises as a Route does."""
        if self.way is None or self.breaker.trouble is not None:
            # It failed between this question's turn and now.
            raise Passing(self.trouble, "interrupted")
        route, capabilities = self.way
        if question.extra_ids is not None and not capabilities.extra_ids:
            question = replace(question, extra_ids=None)
        scores = await route.score(session, self.peer, question, capabilities)
        if self.breaker.state == "aside":
            # It may hold another model since before it answered this.
            raise Passing(self.trouble, "interrupted")
        self._alive_at = monotonic()
        self.bad_replies = 0
        self.breaker.answered()
        return scores

    async def try_out(
        self, session: aiohttp.ClientSession, *, with_canary: bool
    ) -> NDArray[np.float32] | None:
        """Find its route if it has none, and have it score the canary.

        Args:
            session: The teacher's session.
            with_canary: Whether the canary is scored.

        Returns:
            See :func:`atroposlib.teacher.canary.logprobs`; None when it was not asked for.

        Raises:
            Passing: The failure may pass.
            TeacherError: The server is at fault.
        """
        if self.breaker.failures and self.config.health_check:
            await self._check_health(session)
        known = self.way is not None
        try:
            logprobs = await self._probe(session, with_canary)
        except TeacherError as error:
            if not known or error.timed_out:
                raise
            # What answers now may be another server, which is asked in another way.
            self.way = None
            logprobs = await self._probe(session, with_canary)
        self._alive_at = monotonic()
        return logprobs

    async def _probe(self, session: aiohttp.ClientSession, with_canary: bool) -> NDArray[np.float32] | None:
        if self.way is None:
            self.way = await find_route(session, self.peer, PROBE_K)
            self.capabilities = self.way[1]
        if not with_canary:
            return None
        route, capabilities = self.way
        return canary.logprobs(await route.score(session, self.peer, canary.QUESTION, capabilities))

    async def _check_health(self, session: aiohttp.ClientSession) -> None:
        answer = await send(session, replace(self.peer, timeout_s=HEALTH_TIMEOUT_S), "/health")
        # A server without that route is tried all the same.
        if answer.status >= 500:
            raise refused(self.peer, "/health", answer, {})

"""The teachers of one environment: made from its settings, asked for a sequence, checked and closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import PLAIN_NAME, called
from atroposlib.envs.counters import Counters, Coverage
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.tasks import all_of, off_loop
from atroposlib.envs.teacher_check import check_servers
from atroposlib.envs.teacher_context import ContextRenderer, template_of
from atroposlib.envs.teacher_loading import tokenizer_name
from atroposlib.envs.teacher_reading import Rows, longest_of
from atroposlib.envs.teacher_routing import Assignment
from atroposlib.envs.teacher_tokenizers import TeacherTokenizers
from atroposlib.envs.telling import kind_of, one_line
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import TeacherError
from atroposlib.teacher.cache import ScoreCache
from atroposlib.teacher.targets import with_extra
from atroposlib.teacher.teacher import Teacher
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, TeacherScores

if TYPE_CHECKING:
    from atroposlib.config.env import TeacherDistillationConfig
    from atroposlib.envs.runtime import Runtime

logger = logging.getLogger(__name__)

TAKES_NO_IDS = "scores no ids that it is given; student_top_k adds nothing"
OTHER_IDS = "has other ids than the student; student_top_k adds nothing"
OTHER_TOKENIZER = "has another tokenizer ({:.1%} of the student's tokens): its scores travel with chunk ids"
NOTHING_TO_DISTILL = (
    "no teacher has the student's tokenizer, so groups carry no distill_token_ids, and a trainer that knows "
    "nothing else finds no target in them; env.distill_projection: exact fills them where one token says the "
    "same on both sides"
)

_GET_LOGPROBS = ServerManager.get_logprobs


class TeacherSet:
    """What an environment has of its teachers.

    Args:
        configs: The teachers' settings by name, the plain one first.
        teachers: The teachers themselves; empty where only a ServerManager is to be asked.
        manager: The ServerManager that stands for the first teacher.
        cache: What the teachers share and this set closes.
        tokenizer_fingerprint: Of the student's tokenizer; empty for a plain teacher alone.
        tokenizers: Of the teachers; None where nobody compares them, so that all are the student's.

    Attributes:
        tokenizers: As above.
    """

    def __init__(
        self,
        configs: Mapping[str, TeacherConfig],
        teachers: Mapping[str, Teacher] | None = None,
        manager: Any = None,
        cache: ScoreCache | None = None,
        tokenizer_fingerprint: str = "",
        tokenizers: TeacherTokenizers | None = None,
    ) -> None:
        self.configs = configs
        self.teachers = teachers or {}
        self._fingerprint = tokenizer_fingerprint
        self.tokenizers = tokenizers or TeacherTokenizers(None, {})
        self._manager = manager
        self._cache = cache
        self._troubles: dict[str, str | None] = {}
        self._renderers: dict[str, ContextRenderer] = {}
        self._told_once: set[tuple[str, str]] = set()
        self._told: dict[str, Coverage] = {}

    @property
    def first(self) -> str:
        """Name of the teacher that stands for all where only one is asked."""
        return next(iter(self.configs))

    @property
    def are_named(self) -> bool:
        """Whether groups carry an entry for each teacher."""
        return list(self.configs) != [PLAIN_NAME]

    def tokenizer_names(self) -> dict[str, str]:
        """The tokenizers of all teachers, each once (hub ids or directories), with the name of a teacher."""
        found: dict[str, str] = {}
        for name, config in self.configs.items():
            for server in config.servers():
                found.setdefault(tokenizer_name(server), name)
        return found

    def is_replaced(self, server: Any, teacher: str | None) -> bool:
        """Whether something stands in the place of the ServerManager that we made for the first teacher."""
        if teacher not in (None, self.first):
            return False
        ask = getattr(server, "get_logprobs", None)
        return server is not self._manager or getattr(ask, "__func__", None) is not _GET_LOGPROBS

    async def fetch(
        self,
        teacher: str | None,
        ids: Sequence[int],
        top_k: int,
        start: int,
        extra_ids: NDArray[np.int32] | None,
    ) -> Rows:
        """Ids int32 and logprobs float32 [T, K] of one sequence; rows before ``start`` are absent."""
        name = teacher or self.first
        if extra_ids is not None and not self.takes_ids(name):
            extra_ids = None
        scores = await self.teachers[name].score(ids, top_k, start, extra_ids)
        if extra_ids is not None and scores.extra_logprobs is None:
            self.tell_once(name, TAKES_NO_IDS)
        return await off_loop(len(ids) * scores.ids.shape[1], lambda: _laid_out(scores, extra_ids, len(ids)))

    def is_other(self, name: str) -> bool:
        """Whether a teacher is known to have another tokenizer than the student."""
        kin = self.tokenizers.of(name)
        return kin is not None and not kin.same

    async def meet(self, names: Iterable[str]) -> dict[str, TeacherError]:
        """Learn the tokenizers that only the teachers' servers tell; the failures of those that do not.

        Raises:
            ConfigError: A server hands out no tokenizer, or one that cannot be aligned.
        """
        troubles: dict[str, TeacherError] = {}
        for name in names:
            try:
                await self.tokenizers.complete(name)
            except TeacherError as error:
                troubles[name] = error
        return troubles

    def takes_ids(self, name: str) -> bool:
        """Whether a teacher may score the student's ids; told once when it is known not to."""
        if self.is_other(name):
            self.tell_once(name, OTHER_IDS)
            return False
        teacher = self.teachers.get(name)
        can = [] if teacher is None else teacher.capabilities
        if can and not any(one.extra_ids for one in can):
            self.tell_once(name, TAKES_NO_IDS)
            return False
        return teacher is not None

    def tell_once(self, name: str, what: str, example: str = "") -> None:
        """One warning about a teacher, however often the same is found; with the first example of it."""
        if (name, what) not in self._told_once:
            self._told_once.add((name, what))
            logger.warning("%s %s%s", called(name), what, f": {example}" if example else "")

    def longest(self, name: str) -> int | None:
        """Most tokens that every server of a teacher scores at once; None where none has told."""
        teacher = self.teachers.get(name)
        return None if teacher is None else longest_of(teacher.capabilities)

    def model(self, name: str) -> str:
        """Model id that a teacher answers for."""
        teacher = self.teachers.get(name)
        told = [] if teacher is None else [can.model for can in teacher.capabilities]
        return next((model for model in told if model), self.configs[name].servers()[0].model_name)

    def facts(self, who: Assignment) -> dict[str, Any]:
        """A teacher's entry in ``teachers`` but for the arrays."""
        told = self.tokenizers.fingerprint(who.name, self._fingerprint)
        return who.facts(self.model(who.name), told, same_tokenizer=not self.is_other(who.name))

    async def renderer(self, name: str, student: Any) -> ContextRenderer:
        """What renders the context that only this teacher sees; its tokenizer is loaded once."""
        if name not in self._renderers:
            config = self.configs[name]
            kin, wanted = self.tokenizers.of(name), tokenizer_name(config.servers()[0])
            theirs = kin.tokenizer if kin is not None else None
            if theirs is None:
                same = wanted == getattr(student, "name_or_path", None)
                theirs = student if same else await asyncio.to_thread(read_tokenizer, wanted)
            self._renderers[name] = ContextRenderer(
                student, theirs, template_of(name, config, theirs), config.chat_template_kwargs
            )
        return self._renderers[name]

    async def check(self, server: Any, tokenizer: Any, config: TeacherDistillationConfig) -> None:
        """Ask every server of every teacher one quick question.

        Args:
            server: What is asked for the first teacher.
            tokenizer: The student's.
            config: The environment's settings.

        Raises:
            TeacherUnreachable: No server of a teacher answers.
            AtroposError: A server is not what the settings say.
        """
        top_ks = {
            name: config.teacher_top_k if one.top_k is None else one.top_k
            for name, one in self.configs.items()
        }
        troubles = await self.meet(name for name, k in top_ks.items() if k >= 0)
        if troubles:
            raise next(iter(troubles.values()))
        await self._prepare_others(config)
        checks: list[Coroutine[Any, Any, None]] = []
        for name, k in top_ks.items():
            replaced = self.is_replaced(server, name)
            servers = [asked.config for asked in server.servers] if replaced else self.configs[name].servers()
            if k >= 0 and servers:
                kin = self.tokenizers.of(name)
                theirs = tokenizer if kin is None else kin.tokenizer
                checks.append(check_servers(name, servers, theirs, k))
        await all_of(checks)

    async def _prepare_others(self, config: TeacherDistillationConfig) -> None:
        """Tell which teachers have another tokenizer, and make ready what is slow to make for them."""
        others = [name for name in self.configs if self.is_other(name)]
        for name in others:
            await self.tokenizers.viewer(name)
            kin = self.tokenizers.of(name)
            logger.info("%s %s", called(name), OTHER_TOKENIZER.format(kin.overlap if kin else 0.0))
        if len(others) == len(self.configs) and getattr(config, "distill_projection", "off") == "off":
            logger.warning(NOTHING_TO_DISTILL)

    def tell(self, who: str, failures: Sequence[Exception]) -> None:
        """One line when somebody begins to fail in another way than before, and one when it ends."""
        before, now = self._troubles.get(who), kind_of(failures[0]) if failures else None
        self._troubles[who] = now
        if before is not None and now is None:
            logger.info("%s answers again", who)
        if now is not None and now != before:
            logger.warning("%s failed on %d sequence(s): %s", who, len(failures), one_line(failures[0]))

    def write_books(self, runtime: Runtime) -> None:
        """Write to the journal what each teacher was asked for in all, and what became of it."""
        covered = runtime.counters.teachers
        runtime.journal.write(
            "teacher_stats",
            metrics=self._teachers_metrics(),
            positions={name: one.wanted for name, one in covered.items()},
            scored={name: one.scored for name, one in covered.items()},
        )

    def metrics(self, counters: Counters) -> dict[str, float]:
        """``teacher/<name>/<metric>``, and ``teacher_token_frac/<name>`` since the last call of this.

        The latter is the share of positions that were to have a target and have one.
        """
        found = self._teachers_metrics()
        for name, now in counters.teachers.items():
            before = self._told.get(name, Coverage())
            self._told[name] = replace(now)
            if now.wanted > before.wanted:
                share = (now.scored - before.scored) / (now.wanted - before.wanted)
                found[f"teacher_token_frac/{name}"] = share
        return found

    def _teachers_metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for teacher in self.teachers.values():
            found |= teacher.stats.metrics()
        return found

    async def close(self) -> None:
        """Close the sessions to the servers, and the cache."""
        await asyncio.gather(*(teacher.close() for teacher in self.teachers.values()))
        if self._cache is not None:
            await self._cache.close()


def _laid_out(scores: TeacherScores, extra_ids: NDArray[np.int32] | None, length: int) -> Rows:
    """Scores, and those of the ids that were named, as rows of all ``length`` positions."""
    if extra_ids is not None:
        scores = with_extra(scores, extra_ids)
    token_ids = np.full((length, scores.ids.shape[1]), ABSENT_ID, np.int32)
    logprobs = np.full(token_ids.shape, ABSENT_LOGPROB, np.float32)
    rows = slice(scores.start, scores.start + len(scores.ids))
    token_ids[rows], logprobs[rows] = scores.ids, scores.logprobs
    return token_ids, logprobs

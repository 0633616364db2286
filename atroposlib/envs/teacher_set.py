"""The teachers of one environment: made from its settings, asked for a sequence, checked and closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.server import ServerBaseline
from atroposlib.config.teacher import MOST_TOP_K, TeacherConfig, TeacherLimits
from atroposlib.config.teachers import PLAIN_NAME, called
from atroposlib.envs.counters import Counters, Coverage
from atroposlib.envs.server_handling.addresses import server_configs
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.tasks import all_of, off_loop
from atroposlib.envs.teacher_check import check_servers
from atroposlib.envs.teacher_context import ContextRenderer, template_of
from atroposlib.envs.teacher_reading import Rows, longest_of
from atroposlib.envs.telling import kind_of, one_line
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import ConfigError
from atroposlib.teacher.cache import ScoreCache
from atroposlib.teacher.targets import with_extra
from atroposlib.teacher.teacher import Teacher
from atroposlib.teacher.tokenizers import fingerprint
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, TeacherScores

if TYPE_CHECKING:
    from atroposlib.config.env import TeacherDistillationConfig
    from atroposlib.envs.runtime import Runtime
    from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv

logger = logging.getLogger(__name__)

TAKES_NO_IDS = "scores no ids that it is given; student_top_k adds nothing"

_GET_LOGPROBS = ServerManager.get_logprobs


class TeacherSet:
    """What an environment has of its teachers.

    Args:
        configs: The teachers' settings by name, the plain one first.
        teachers: The teachers themselves; empty where only a ServerManager is to be asked.
        manager: The ServerManager that stands for the first teacher.
        cache: What the teachers share and this set closes.

    Attributes:
        fingerprint: Of the vocabulary that student and named teachers share; empty for a plain teacher alone.
    """

    def __init__(
        self,
        configs: Mapping[str, TeacherConfig],
        teachers: Mapping[str, Teacher] | None = None,
        manager: Any = None,
        cache: ScoreCache | None = None,
        tokenizer_fingerprint: str = "",
    ) -> None:
        self.configs = configs
        self.teachers = teachers or {}
        self.fingerprint = tokenizer_fingerprint
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

    def takes_ids(self, name: str) -> bool:
        """Whether a teacher may score ids that it is given; told once when it is known not to."""
        teacher = self.teachers.get(name)
        can = [] if teacher is None else teacher.capabilities
        if can and not any(one.extra_ids for one in can):
            self.tell_once(name, TAKES_NO_IDS)
            return False
        return teacher is not None

    def tell_once(self, name: str, what: str) -> None:
        """One warning about a teacher, however often the same is found."""
        if (name, what) not in self._told_once:
            self._told_once.add((name, what))
            logger.warning("%s %s", called(name), what)

    def longest(self, name: str) -> int | None:
        """Most tokens that every server of a teacher scores at once; None where none has told."""
        teacher = self.teachers.get(name)
        return None if teacher is None else longest_of(teacher.capabilities)

    def model(self, name: str) -> str:
        """Model id that a teacher answers for."""
        teacher = self.teachers.get(name)
        told = [] if teacher is None else [can.model for can in teacher.capabilities]
        return next((model for model in told if model), self.configs[name].servers()[0].model_name)

    async def renderer(self, name: str, student: Any) -> ContextRenderer:
        """What renders the context that only this teacher sees; its tokenizer is loaded once."""
        if name not in self._renderers:
            config = self.configs[name]
            wanted = tokenizer_name(config.servers()[0])
            same = wanted == getattr(student, "name_or_path", None)
            theirs = student if same else await asyncio.to_thread(read_tokenizer, wanted)
            self._renderers[name] = ContextRenderer(student, theirs, template_of(name, config, theirs))
        return self._renderers[name]

    async def check(self, server: Any, tokenizer: Any, top_k: int) -> None:
        """Ask every server of every teacher one quick question; ``server`` is what is asked for the first.

        Raises:
            TeacherUnreachable: No server of a teacher answers.
            AtroposError: A server is not what the settings say.
        """
        checks: list[Coroutine[Any, Any, None]] = []
        for name, config in self.configs.items():
            k = top_k if config.top_k is None else config.top_k
            replaced = self.is_replaced(server, name)
            servers = [one.config for one in server.servers] if replaced else config.servers()
            if k >= 0 and servers:
                checks.append(check_servers(name, servers, tokenizer, k))
        await all_of(checks)

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


def open_teachers(env: TeacherDistillationEnv, configs: Mapping[str, TeacherConfig]) -> TeacherSet:
    """The teachers of an environment; nothing is connected yet.

    Args:
        env: Whose settings and tokenizer hold.
        configs: The teachers' by name, the plain one first.

    Raises:
        ConfigError: A template that cannot be read, or more columns than a group may have.
    """
    config = env.config
    for name, one in configs.items():
        template_of(name, one, env.tokenizer)
        _require_room(name, one, config)
    usual = TeacherLimits()
    limits = TeacherLimits(
        patience_s=getattr(config, "teacher_patience", usual.patience_s),
        tokens_in_flight=getattr(config, "teacher_tokens_in_flight", usual.tokens_in_flight),
    )
    size, path = getattr(config, "teacher_cache_mb", 0), getattr(config, "teacher_cache_path", None)
    cache = ScoreCache(size << 20, path) if size or path else None
    shared = "" if list(configs) == [PLAIN_NAME] else fingerprint(env.tokenizer)
    teachers = {
        name: Teacher(
            name,
            server_configs(one.servers(), teacher=True),
            limits,
            cache=cache,
            tokenizer=shared,
            dtype=getattr(config, "logprob_dtype", "float32"),
        )
        for name, one in configs.items()
    }
    return TeacherSet(configs, teachers, env.teacher_server, cache, shared)


def _require_room(name: str, teacher: TeacherConfig, config: TeacherDistillationConfig) -> None:
    """Refuse more columns than the API takes: every group would be dropped."""
    named = getattr(config, "student_top_k", 0)
    top_k = config.teacher_top_k if teacher.top_k is None else teacher.top_k
    if top_k + named > MOST_TOP_K:
        raise ConfigError(
            f"rows of {called(name)} have too many columns",
            where="env.student_top_k",
            got=f"1 + {top_k} of the teacher + {named} of the student",
            expected=f"at most {MOST_TOP_K + 1}",
        )


def tokenizer_name(config: ServerBaseline) -> str:
    """Hub id or directory of a server's tokenizer: ``model_name`` unless it is set."""
    named = getattr(config, "tokenizer_name", "none")
    return config.model_name if named in ("", "none") else named

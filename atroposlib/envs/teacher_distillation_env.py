"""TeacherDistillationEnv: completes scored groups with a teacher's logprobs of the student's own tokens."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from abc import ABC, ABCMeta
from typing import TYPE_CHECKING, Any, ClassVar

from atroposlib.config.env import TeacherDistillationConfig
from atroposlib.config.merge import given
from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.config.yaml_file import YamlFile
from atroposlib.envs.base import BaseEnv, ScoredDataGroup
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.lazy_servers import ServerManager
from atroposlib.envs.server_handling.openai_server import resolve_openai_configs
from atroposlib.envs.server_options import check_section, merge_layers, options_in
from atroposlib.envs.teacher_targets import Rows, check_rows, rectangular
from atroposlib.envs.telling import first_line, kind_of, one_line
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import ConfigError

__all__ = ["TeacherDistillationConfig", "TeacherDistillationEnv"]

if TYPE_CHECKING:
    from atroposlib.envs.server_handling.server_manager import ServerManager as Manager

logger = logging.getLogger(__name__)

TeacherConfigs = ServerBaseline | list[APIServerConfig]

TEACHER_FAILED = "teacher_failed"
TEACHER_ARGUMENT = "teacher_server_configs"


class _TakesTeacher(ABCMeta):
    """Lets every subclass be built with ``teacher_server_configs=...``.

    In ``class New(OldEnv, TeacherDistillationEnv)`` the constructor is OldEnv's, which knows no such argument
    and passes ``(config, server_configs, slurm, testing)`` on; the teacher is laid aside for our own.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kind: Any = cls
        if TEACHER_ARGUMENT not in kwargs or TEACHER_ARGUMENT in inspect.signature(kind.__init__).parameters:
            return super().__call__(*args, **kwargs)
        env = kind.__new__(kind)
        env._laid_aside_teacher = kwargs.pop(TEACHER_ARGUMENT)
        kind.__init__(env, *args, **kwargs)
        return env


class TeacherDistillationEnv(BaseEnv, ABC, metaclass=_TakesTeacher):
    """BaseEnv whose groups carry ``distill_token_ids`` and ``distill_logprobs`` [G][T][K].

    Column 0 is the token that stands in the sequence, columns 1.. are the teacher's top-k without it;
    absent entries are id -1 and logprob -9999.0. Teacher and student share one tokenizer.

    Args:
        config: Settings of the environment.
        server_configs: Student servers.
        *rest: Either ``(slurm, testing)``, as environments written for BaseEnv pass them on, or
            ``(teacher_server_configs, slurm, testing)``; a bool in front tells them apart.
        teacher_server_configs: Teacher servers.
        slurm: Find the student servers by the Slurm environment variables.
        testing: Start no servers.

    Raises:
        ConfigError: ``teacher_enabled`` without a teacher, or a teacher with another tokenizer.
    """

    env_config_cls = TeacherDistillationConfig
    teacher_namespace: ClassVar[str] = "teacher"

    config: TeacherDistillationConfig
    _laid_aside_teacher: Any = None

    def __init__(
        self,
        config: Any,
        server_configs: Any,
        *rest: Any,
        teacher_server_configs: Any = None,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        teacher_server_configs = teacher_server_configs or self._laid_aside_teacher
        if rest and not isinstance(rest[0], bool):
            teacher_server_configs, rest = rest[0] or teacher_server_configs, rest[1:]
        if rest:
            slurm, testing = rest if len(rest) > 1 else (rest[0], testing)
        super().__init__(config, server_configs, slurm=slurm, testing=testing)
        self.teacher_server: Manager | None = None
        self._teacher_trouble: str | None = None
        if not getattr(config, "teacher_enabled", False):
            return
        if teacher_server_configs is None:
            raise ConfigError(
                "teacher_enabled=True but no teacher server configuration was provided",
                fix=f"give --{self.teacher_namespace}.base_url and --{self.teacher_namespace}.model_name, a "
                f"`{self.teacher_namespace}` section in YAML, or {TEACHER_ARGUMENT}=...",
            )
        teachers = (
            [teacher_server_configs]
            if isinstance(teacher_server_configs, APIServerConfig)
            else teacher_server_configs
        )
        self.teacher_server = ServerManager(teachers, slurm=False, testing=False)
        for name in dict.fromkeys(
            map(_tokenizer_name, teachers if isinstance(teachers, list) else [teachers])
        ):
            self._validate_teacher_tokenizer_compatibility(name)

    @classmethod
    def teacher_config_init(cls) -> ServerBaseline | APIServerConfig | list[APIServerConfig] | None:
        """Default settings of the teacher's servers, or None when the user has to give them."""
        return None

    @classmethod
    def server_namespaces(cls) -> tuple[str, ...]:
        """The teacher's option namespace."""
        return (cls.teacher_namespace,)

    @classmethod
    def from_options(
        cls, config: Any, server_configs: Any, yaml: YamlFile, flags: dict[str, Any], **kwargs: Any
    ) -> BaseEnv:
        """The environment with its teacher; naming a teacher turns ``teacher_enabled`` on."""
        space = cls.teacher_namespace
        check_section(space, yaml, flags)
        teachers = cls._resolve_teacher_server_configs(cls.teacher_config_init(), yaml.data, flags)
        changed: dict[str, Any] = {}
        named = bool(yaml.data.get(space)) or bool(options_in(flags, space))
        if named and not given(yaml, flags, ENV_NAMESPACE, "teacher_enabled"):
            changed["teacher_enabled"] = True
        enabled = changed.get("teacher_enabled", config.teacher_enabled)
        if enabled and not given(yaml, flags, ENV_NAMESPACE, "ensure_scores_are_not_same"):
            changed["ensure_scores_are_not_same"] = False
        if teachers is not None:
            kwargs[TEACHER_ARGUMENT] = teachers
        return cls(config=config.model_copy(update=changed), server_configs=server_configs, **kwargs)

    @classmethod
    def _resolve_teacher_server_configs(
        cls,
        default_teacher_server_configs: ServerBaseline | APIServerConfig | list[APIServerConfig] | None,
        yaml_config: dict[str, Any],
        cli_passed_flags: dict[str, Any],
    ) -> TeacherConfigs | None:
        """Defaults < YAML < options; None when none of them names a teacher."""
        options = options_in(cli_passed_flags, cls.teacher_namespace)
        section = yaml_config.get(cls.teacher_namespace) or {}
        if default_teacher_server_configs is None and not options and not section:
            return None
        defaults, section, merged = merge_layers(
            default_teacher_server_configs or APIServerConfig(), section, options
        )
        return resolve_openai_configs(
            default_server_configs=defaults,
            openai_config_dict=merged,
            yaml_config={OPENAI_NAMESPACE: section},
            cli_passed_flags={
                f"{OPENAI_NAMESPACE}{NAMESPACE_SEP}{name}": value for name, value in options.items()
            },
            logger=logger,
        )

    def _validate_teacher_tokenizer_compatibility(self, teacher_tokenizer_name: str) -> None:
        """Raises ConfigError (a ValueError) unless both tokenizers have the same vocabulary."""
        student_name = getattr(self.tokenizer, "name_or_path", None) or ""
        if student_name == teacher_tokenizer_name:
            return
        try:
            teacher = read_tokenizer(teacher_tokenizer_name)
        except (OSError, ValueError) as error:
            raise ConfigError(
                "the teacher's tokenizer cannot be loaded, so it cannot be compared with the student's",
                where=f"{self.teacher_namespace}.tokenizer_name",
                got=f"{teacher_tokenizer_name!r}: {first_line(error)}",
                fix="set it to the student's tokenizer if they are the same",
            ) from error
        if teacher.get_vocab() != self.tokenizer.get_vocab():
            raise ConfigError(
                "Cross-tokenizer distillation is not supported: the vocabularies differ",
                where=f"{self.teacher_namespace}.tokenizer_name",
                got=teacher_tokenizer_name,
                expected=f"the vocabulary of {student_name or type(self.tokenizer).__name__}",
            )

    async def check_servers(self) -> None:
        """One quick question to each teacher: does it answer, has it the model, does it give the top-k?"""
        from atroposlib.envs.teacher_check import check_teacher

        await super().check_servers()
        if self.teacher_server is not None and self.config.teacher_top_k >= 0:
            await check_teacher(self.teacher_server, self.tokenizer, self.config.teacher_top_k)

    async def close_servers(self) -> None:
        """Close the sessions to student and teacher."""
        await super().close_servers()
        if self.teacher_server is not None:
            await self.teacher_server.close()

    async def complete_group(self, group: ScoredDataGroup) -> ScoredDataGroup | None:
        """Attach the teacher's targets; None when the group was dropped for want of them."""
        return await self._attach_teacher_distillation(group)

    async def _fetch_teacher_for_sequence(self, token_ids: list[int], top_k: int) -> Rows:
        """Ids and logprobs [T][K] of one sequence. Raises TeacherError."""
        if self.teacher_server is None:
            raise ConfigError("there is no teacher to ask")
        payload = await self.teacher_server.get_logprobs(
            input_ids=token_ids, top_k=top_k, max_tokens=1, split="train"
        )
        return payload["prompt_topk_token_ids"], payload["prompt_topk_logprobs"]

    async def _attach_teacher_distillation(self, group: ScoredDataGroup) -> ScoredDataGroup | None:
        """A copy of the group with its targets; None when ``on_teacher_failure`` dropped it.

        The arrays are None when the teacher is not to be asked: an empty group, ``skip_teacher_top_k``, or
        a ``teacher_top_k`` below 0 in the overrides or the settings.
        """
        if not self.config.teacher_enabled or self.teacher_server is None:
            return group
        overrides = group.get("group_overrides") or {}
        wanted = overrides.get("teacher_top_k")
        top_k = int(self.config.teacher_top_k if wanted is None else wanted)
        sequences = group.get("tokens") or []
        if not sequences or top_k < 0 or overrides.get("skip_teacher_top_k", False):
            return _with_arrays(group, None, None)
        scored = await self._score_sequences(sequences, top_k)
        return self._with_targets(group, scored)

    async def _score_sequences(self, sequences: list[list[int]], top_k: int) -> list[Rows | None]:
        """Rows of each sequence, None where the teacher failed on it."""
        start = time.time()
        calls = (self._fetch_checked(ids, top_k) for ids in sequences)
        results = await asyncio.gather(*calls, return_exceptions=True)
        scored: list[Rows | None] = []
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
            scored.append(None if isinstance(result, Exception) else result)
        failures = [result for result in results if isinstance(result, Exception)]
        self._tell(failures)
        runtime = getattr(self, "runtime", None)
        if runtime is not None:
            runtime.counters.teacher_failures += len(failures)
            tokens = sum(len(ids) for ids in sequences)
            runtime.journal.write(
                "teacher", start=start, sequences=len(sequences), tokens=tokens, failed=len(failures)
            )
        return scored

    async def _fetch_checked(self, ids: list[int], top_k: int) -> Rows:
        return check_rows(await self._fetch_teacher_for_sequence(ids, top_k), len(ids))

    def _with_targets(self, group: ScoredDataGroup, scored: list[Rows | None]) -> ScoredDataGroup | None:
        """Apply ``on_teacher_failure``; settings without that field behave as Atropos does."""
        policy = getattr(self.config, "on_teacher_failure", "send_without")
        failed = sum(rows is None for rows in scored)
        token_ids, logprobs = None, None
        if failed == 0 or (policy == "mask" and failed < len(scored)):
            token_ids, logprobs = rectangular(scored, [len(ids) for ids in group["tokens"]])
        elif policy != "send_without":
            self.runtime.drop(TEACHER_FAILED, group)
            return None
        return _with_arrays(group, token_ids, logprobs)

    def _tell(self, failures: list[Exception]) -> None:
        """One line when the teacher begins to fail in another way than before, and one when it ends."""
        before = getattr(self, "_teacher_trouble", None)
        now = kind_of(failures[0]) if failures else None
        self._teacher_trouble = now
        if before is not None and now is None:
            logger.info("the teacher answers again")
        if now is not None and now != before:
            logger.warning("the teacher failed on %d sequence(s): %s", len(failures), one_line(failures[0]))

    @property
    def drops_equal_scores(self) -> bool:
        """Equal scores say nothing to a reward, and all the same the teacher teaches on them."""
        explicit = "ensure_scores_are_not_same" in self.config.model_fields_set
        return super().drops_equal_scores and (explicit or not self.config.teacher_enabled)


def _with_arrays(
    group: ScoredDataGroup, token_ids: list[list[list[int]]] | None, logprobs: list[list[list[float]]] | None
) -> ScoredDataGroup:
    """A shallow copy with these arrays: the caller's group can be sent a second time."""
    copy = group.copy()
    copy["distill_token_ids"], copy["distill_logprobs"] = token_ids, logprobs
    return copy


def _tokenizer_name(config: ServerBaseline) -> str:
    named = getattr(config, "tokenizer_name", "none")
    return config.model_name if named in ("", "none") else named

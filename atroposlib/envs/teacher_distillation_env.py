"""TeacherDistillationEnv: completes scored groups with teachers' logprobs of the student's own tokens."""

from __future__ import annotations

import inspect
import logging
from abc import ABC, ABCMeta
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from atroposlib.config.env import TeacherDistillationConfig
from atroposlib.config.merge import given
from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import PLAIN_NAME, all_teachers, place_of
from atroposlib.config.yaml_file import YamlFile
from atroposlib.envs.base import BaseEnv, ScoredDataGroup
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.lazy_servers import TeacherServerManager as ServerManager
from atroposlib.envs.server_handling import addresses
from atroposlib.envs.server_handling.openai_server import resolve_openai_configs
from atroposlib.envs.server_options import check_section, merge_layers, options_in
from atroposlib.envs.teacher_options import named_teachers
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import ConfigError

__all__ = ["TeacherDistillationConfig", "TeacherDistillationEnv"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from atroposlib.envs.server_handling.server_manager import ServerManager as Manager
    from atroposlib.envs.teacher_reading import Rows
    from atroposlib.envs.teacher_set import TeacherSet
    from atroposlib.teacher.teacher import Teacher

logger = logging.getLogger(__name__)

TeacherConfigs = ServerBaseline | list[APIServerConfig]

TEACHER_ARGUMENT = "teacher_server_configs"
TEACHERS_ARGUMENT = "teachers"


class _TakesTeacher(ABCMeta):
    """Lets every subclass be built with ``teacher_server_configs=...`` and ``teachers=...``.

    In ``class New(OldEnv, TeacherDistillationEnv)`` the constructor is OldEnv's, which knows no such argument
    and passes ``(config, server_configs, slurm, testing)`` on; the teachers are laid aside for our own.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kind: Any = cls
        known = inspect.signature(kind.__init__).parameters
        aside = {name for name in (TEACHER_ARGUMENT, TEACHERS_ARGUMENT) if name in kwargs} - known.keys()
        env = kind.__new__(kind)
        env._laid_aside = {name: kwargs.pop(name) for name in aside}
        kind.__init__(env, *args, **kwargs)
        return env


class TeacherDistillationEnv(BaseEnv, ABC, metaclass=_TakesTeacher):
    """BaseEnv whose groups carry ``distill_token_ids`` and ``distill_logprobs`` [G][T][K].

    Column 0 is the token that stands in the sequence, columns 1.. are the teacher's top-k without it, then
    the student's own top-k where ``student_top_k`` asks for it; absent entries are id -1, logprob -9999.0.
    Named teachers travel as ``teachers`` too, one entry each, and so does one with another tokenizer than the
    student: at its own tokens, with the chunks of both sides that stand for the same bytes.

    Args:
        config: Settings of the environment.
        server_configs: Student servers.
        *rest: Either ``(slurm, testing)``, as environments written for BaseEnv pass them on, or
            ``(teacher_server_configs, slurm, testing)``; a bool in front tells them apart.
        teacher_server_configs: Servers of the plain teacher.
        teachers: Named teachers.
        slurm: Find the student servers by the Slurm environment variables.
        testing: Start no servers.

    Attributes:
        teachers: The teachers by name, the plain one first; empty while ``teacher_enabled`` is off.
        teacher_server: The first teacher's servers as Atropos's ServerManager. Another object in its place,
            or another ``get_logprobs``, is asked instead of that teacher.

    Raises:
        ConfigError: ``teacher_enabled`` without a teacher, or a teacher whose tokenizer cannot be used.
    """

    env_config_cls = TeacherDistillationConfig
    teacher_namespace: ClassVar[str] = "teacher"
    teacher_takes_images: ClassVar[bool] = False
    """Whether what the teachers read of a group says all of it although the group has images."""

    config: TeacherDistillationConfig
    teachers: Mapping[str, Teacher] = {}
    _laid_aside: Mapping[str, Any] = {}
    _teacher_set: TeacherSet | None = None

    def __init__(
        self,
        config: Any,
        server_configs: Any,
        *rest: Any,
        teacher_server_configs: Any = None,
        teachers: Mapping[str, TeacherConfig] | None = None,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        plain = teacher_server_configs or self._laid_aside.get(TEACHER_ARGUMENT)
        named = teachers or self._laid_aside.get(TEACHERS_ARGUMENT) or {}
        if rest and not isinstance(rest[0], bool):
            plain, rest = rest[0] or plain, rest[1:]
        if rest:
            slurm, testing = rest if len(rest) > 1 else (rest[0], testing)
        super().__init__(config, server_configs, slurm=slurm, testing=testing)
        self.teacher_server: Manager | None = None
        if not getattr(config, "teacher_enabled", False):
            return
        if plain is None and not named:
            raise ConfigError(
                "teacher_enabled=True but no teacher server configuration was provided",
                fix=f"give --{self.teacher_namespace}.base_url and --{self.teacher_namespace}.model_name, a "
                f"`{self.teacher_namespace}` section in YAML, or {TEACHER_ARGUMENT}=...",
            )
        plain = [plain] if isinstance(plain, APIServerConfig) else plain
        configs = all_teachers([] if plain is None else addresses.server_configs(plain, teacher=True), named)
        first = plain if plain is not None else next(iter(configs.values())).servers()
        self.teacher_server = ServerManager(first, slurm=False, testing=False)
        self._open_teachers(configs)

    def _open_teachers(self, configs: Mapping[str, TeacherConfig]) -> None:
        """Make the teachers, and compare each of their tokenizers with the student's."""
        # Imported here, with numpy and the HTTP client, so that --help stays fast.
        from atroposlib.envs.teacher_opening import open_teachers

        align = self._aligns_teachers()
        self._teacher_set = open_teachers(self, configs, align=align)
        self.teachers = self._teacher_set.teachers
        if align:
            return
        for name, teacher in self._teacher_set.tokenizer_names().items():
            try:
                self._validate_teacher_tokenizer_compatibility(name)
            except ConfigError as error:
                error.where = f"{place_of(teacher)}.tokenizer_name"
                raise

    def _aligns_teachers(self) -> bool:
        """Whether a teacher may have another tokenizer: not for settings that know no such thing.

        Nor where the comparison is overridden, which vouches for one vocabulary.
        """
        check = type(self)._validate_teacher_tokenizer_compatibility
        ours = TeacherDistillationEnv._validate_teacher_tokenizer_compatibility
        return check is ours and getattr(self.config, "alignment", "same_tokenizer") == "auto"

    @classmethod
    def teacher_config_init(cls) -> ServerBaseline | APIServerConfig | list[APIServerConfig] | None:
        """Default settings of the teacher's servers, or None when the user has to give them."""
        return None

    @classmethod
    def server_namespaces(cls) -> tuple[str, ...]:
        """The plain teacher's option namespace."""
        return (cls.teacher_namespace,)

    @classmethod
    def server_families(cls) -> dict[str, type[TeacherConfig]]:
        """The named teachers' option namespace: ``--teachers.NAME.<field>``."""
        return {f"{cls.teacher_namespace}s": TeacherConfig}

    @classmethod
    def from_options(
        cls, config: Any, server_configs: Any, yaml: YamlFile, flags: dict[str, Any], **kwargs: Any
    ) -> BaseEnv:
        """The environment with its teachers; naming one turns ``teacher_enabled`` on."""
        space = cls.teacher_namespace
        check_section(space, yaml, flags)
        plain = cls._resolve_teacher_server_configs(cls.teacher_config_init(), yaml.data, flags)
        named = named_teachers(f"{space}s", yaml, flags)
        changed: dict[str, Any] = {}
        any_named = bool(yaml.data.get(space)) or bool(options_in(flags, space)) or bool(named)
        if any_named and not given(yaml, flags, ENV_NAMESPACE, "teacher_enabled"):
            changed["teacher_enabled"] = True
        enabled = changed.get("teacher_enabled", config.teacher_enabled)
        if enabled and not given(yaml, flags, ENV_NAMESPACE, "ensure_scores_are_not_same"):
            changed["ensure_scores_are_not_same"] = False
        kwargs |= {TEACHER_ARGUMENT: plain} if plain is not None else {}
        kwargs |= {TEACHERS_ARGUMENT: named} if named else {}
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
        """Raises ConfigError (a ValueError) unless every id says the same in both tokenizers.

        Asked of every teacher where none may have another tokenizer (``alignment: same_tokenizer``).
        """
        from atroposlib.envs.teacher_loading import unloadable
        from atroposlib.envs.teacher_tokenizers import require_same

        student_name = getattr(self.tokenizer, "name_or_path", None) or ""
        if student_name == teacher_tokenizer_name:
            return
        where = f"{self.teacher_namespace}.tokenizer_name"
        try:
            teacher = read_tokenizer(teacher_tokenizer_name)
        except (OSError, ValueError) as error:
            raise unloadable(where, teacher_tokenizer_name, error) from error
        require_same(self.tokenizer, teacher, where, teacher_tokenizer_name)

    async def check_servers(self) -> None:
        """One quick question to each teacher: does it answer, has it the model, does it give the top-k?"""
        await super().check_servers()
        if self._teacher_set is not None:
            await self._teacher_set.check(self.teacher_server, self.tokenizer, self.config)

    async def close_servers(self) -> None:
        """Close the sessions to student and teachers."""
        await super().close_servers()
        if self.teacher_server is not None:
            await self.teacher_server.close()
        if self._teacher_set is not None:
            self._teacher_set.write_books(self.runtime)
            await self._teacher_set.close()

    async def complete_group(self, group: ScoredDataGroup) -> ScoredDataGroup | None:
        """Attach the teachers' targets; None when the group was dropped or requeued for want of them."""
        return await self._attach_teacher_distillation(group)

    async def _fetch_teacher_for_sequence(
        self,
        token_ids: list[int],
        top_k: int,
        start: int = 1,
        teacher: str | None = None,
        extra_ids: NDArray[np.int32] | None = None,
    ) -> Rows:
        """Ids and logprobs of one sequence, as arrays [T, K] or, asked in Atropos's way, as lists [T][K].

        An override may leave out the arguments that Atropos does not have.

        Args:
            token_ids: The T tokens that the teacher reads.
            top_k: Top-k tokens at each position.
            start: First position that is scored; rows before it may be absent.
            teacher: Who is asked; the first teacher when None.
            extra_ids: Ids [T - start, E] that the teacher scores too, where it can; further columns.

        Raises:
            TeacherError: The teacher cannot be asked, or its answer cannot be used.
        """
        if self.teacher_server is None:
            raise ConfigError("there is no teacher to ask")
        ours = self._teacher_set
        if ours is not None and not ours.is_replaced(self.teacher_server, teacher):
            return await ours.fetch(teacher, token_ids, top_k, start, extra_ids)
        payload = await self.teacher_server.get_logprobs(
            input_ids=token_ids, top_k=top_k, max_tokens=1, split="train"
        )
        return payload["prompt_topk_token_ids"], payload["prompt_topk_logprobs"]

    async def _attach_teacher_distillation(self, group: ScoredDataGroup) -> ScoredDataGroup | None:
        """A copy of the group with its targets; None when ``on_teacher_failure`` dropped or requeued it.

        The arrays are None when no teacher is to be asked: an empty group, ``skip_teacher_top_k``, a
        ``teacher_top_k`` below 0 in the overrides or the settings, or no teacher that the group goes to.
        """
        if not self.config.teacher_enabled or self.teacher_server is None:
            return group
        from atroposlib.envs.teacher_group import complete
        from atroposlib.envs.teacher_set import TeacherSet

        if self._teacher_set is None:
            self._teacher_set = TeacherSet({PLAIN_NAME: TeacherConfig()})
        return await complete(self, self._teacher_set, group)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Add what the teachers have scored since the last call, and their counters."""
        told = {} if self._teacher_set is None else self._teacher_set.metrics(self.runtime.counters)
        await super().wandb_log({**(wandb_metrics or {}), **told})

    @property
    def drops_equal_scores(self) -> bool:
        """Equal scores say nothing to a reward, and all the same the teacher teaches on them."""
        explicit = "ensure_scores_are_not_same" in self.config.model_fields_set
        return super().drops_equal_scores and (explicit or not self.config.teacher_enabled)

"""Makes the teachers of an environment out of its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from atroposlib.config.teacher import MOST_TOP_K, TeacherConfig, TeacherLimits
from atroposlib.config.teachers import PLAIN_NAME, called
from atroposlib.envs.server_handling.addresses import server_configs
from atroposlib.envs.teacher_context import template_of
from atroposlib.envs.teacher_set import TeacherSet
from atroposlib.envs.teacher_tokenizers import TeacherTokenizers
from atroposlib.errors import ConfigError
from atroposlib.teacher.cache import ScoreCache
from atroposlib.teacher.teacher import Teacher
from atroposlib.teacher.tokenizers import fingerprint

if TYPE_CHECKING:
    from atroposlib.config.env import TeacherDistillationConfig
    from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv


def open_teachers(
    env: TeacherDistillationEnv, configs: Mapping[str, TeacherConfig], *, align: bool
) -> TeacherSet:
    """The teachers of an environment; nothing is connected yet.

    Args:
        env: Whose settings and tokenizer hold.
        configs: The teachers' by name, the plain one first.
        align: Whether a teacher may have another tokenizer than the student.

    Raises:
        ConfigError: A template that cannot be read, more columns than a group may have, or a tokenizer that
            cannot be loaded or aligned.
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
    tokenizers = TeacherTokenizers(env.tokenizer, configs if align else {})
    teachers = {
        name: Teacher(
            name,
            server_configs(one.servers(), teacher=True),
            limits,
            cache=cache,
            tokenizer=tokenizers.fingerprint(name, shared),
            dtype=getattr(config, "logprob_dtype", "float32"),
        )
        for name, one in configs.items()
    }
    return TeacherSet(configs, teachers, env.teacher_server, cache, shared, tokenizers)


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

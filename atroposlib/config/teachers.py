"""All teachers of a command by name: the plain `teacher:` and the named ones of `teachers:` together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.errors import ConfigError

PLAIN_NAME = "teacher"
"""Name of the teacher that `teacher:` and `--teacher.*` describe."""

TEACHER_NAME = re.compile(r"[A-Za-z0-9_-]+")


def called(name: str) -> str:
    """A teacher in a sentence."""
    return "the teacher" if name == PLAIN_NAME else f"teacher {name}"


def place_of(name: str) -> str:
    """Where in the settings a teacher stands."""
    return name if name == PLAIN_NAME else f"teachers.{name}"


def all_teachers(
    teacher: Sequence[APIServerConfig], teachers: Mapping[str, TeacherConfig]
) -> dict[str, TeacherConfig]:
    """The teachers by name, the plain one first.

    Args:
        teacher: Servers of the plain teacher, which serve one model; empty for none.
        teachers: The named ones.

    Raises:
        ConfigError: Two teachers of one name, a name with other characters than letters, digits, - and _,
            or a server without an address.
    """
    found: dict[str, TeacherConfig] = {}
    if teacher:
        found[PLAIN_NAME] = TeacherConfig(replicas=list(teacher))
    for name, config in teachers.items():
        where = f"teachers.{name}"
        if not TEACHER_NAME.fullmatch(name):
            raise ConfigError(
                "not the name of a teacher", where=where, expected="letters, digits, - and _", got=repr(name)
            )
        if name in found:
            raise ConfigError(
                "two teachers have one name", where=where, fix=f"`{PLAIN_NAME}:` itself is named {PLAIN_NAME}"
            )
        found[name] = config
    for name, config in found.items():
        _require_addresses(name, config)
    return found


def _require_addresses(name: str, config: TeacherConfig) -> None:
    where = place_of(name)
    for server in config.servers():
        if not server.base_url:
            raise ConfigError(
                "a teacher's server has no address",
                code="usage.missing_value",
                where=where,
                fix=f"set {where}.base_url, or base_url of each of its replicas",
            )

"""One finding of the doctor, and what findings together mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atroposlib.errors import EXIT_FAILED, EXIT_OK, EXIT_TEACHER_UNREACHABLE, AtroposError

Status = Literal["ok", "warn", "fail", "skip"]
SEVERITY: tuple[Status, ...] = ("skip", "ok", "warn", "fail")

REACHABLE = "reachable"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding about one server.

    Attributes:
        name: What was looked at.
        server: Whom it is about: ``math``, ``math[1]``, ``student``.
        status: ``ok``; ``warn``, which lets a run go on; ``fail``; ``skip`` where it could not be looked at.
        detail: What was found, with numbers.
        fix: What the user can do about it.
        facts: The numbers of ``detail`` for programs.
    """

    name: str
    server: str
    status: Status
    detail: str
    fix: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def failed(name: str, server: str, error: AtroposError) -> Check:
    """A failed check in the words of an error."""
    facts = [f"{word} {value}" for word, value in (("got", error.got), ("expected", error.expected)) if value]
    where = f"{error.where}: " if error.where else ""
    said = f" ({', '.join(facts)})" if facts else ""
    detail = f"{where}{error.what}{said} [{error.code}]"
    return Check(name, server, "fail", detail, error.fix, {"code": error.code})


def is_unreachable(check: Check) -> bool:
    """Whether a failed check means that the server is away; a paused one lists its models all the same."""
    return check.name == REACHABLE or str(check.facts.get("code", "")).endswith(".unreachable")


def worst(checks: Iterable[Check]) -> Status:
    """The gravest status among the checks, ``ok`` without any."""
    return max((check.status for check in checks), key=SEVERITY.index, default="ok")


def exit_code(checks: Iterable[Check]) -> int:
    """3 when a server cannot be reached, else 1 when a check failed, else 0."""
    failures = [check for check in checks if check.status == "fail"]
    if any(map(is_unreachable, failures)):
        return EXIT_TEACHER_UNREACHABLE
    return EXIT_FAILED if failures else EXIT_OK

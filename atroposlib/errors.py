"""The error vocabulary: what every failure of the product is called and how it is told.

Hierarchy::

    AtroposError
    ├── UsageError            a flag, a file or a value that the user can correct; exit 2
    │   └── ConfigError       the same, in a configuration model (also a ValueError)
    ├── TeacherError          a teacher answered, and the answer cannot be used
    │   └── TeacherUnreachable    no answer at all; exit 3
    ├── StudentError          a student server's answer cannot be used
    ├── AlignError            a sequence or conversation that cannot be aligned as it is (also a ValueError)
    ├── LossError             tensors that a loss cannot take as they are (also a ValueError)
    ├── WireError             a group that breaks the contract (also a ValueError); HTTP 422
    ├── ApiError              the trajectory API refused or cannot be reached
    └── RunError              a part of a supervised run failed

Every error names its ``code``, which is a key of :data:`CODES` (``atropos errors`` lists them).
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_TEACHER_UNREACHABLE = 3
EXIT_INTERRUPTED = 130

CODES: dict[str, str] = {
    "usage.unknown_option": "An option or YAML key that does not exist; the nearest name is suggested.",
    "usage.bad_value": "An option or YAML value of the wrong type or outside its limits.",
    "usage.missing_value": "A required option, key or file name was not given.",
    "usage.file": "A file or directory named by the user does not exist or cannot be read or written.",
    "usage.yaml": "A YAML file that cannot be parsed.",
    "usage.port_in_use": "The port is taken by another process.",
    "usage.open_address": "A public address without tokens, which lets the whole network in.",
    "usage.model": "A model directory or hub id that cannot be loaded.",
    "usage.download": "The demo's model package could not be downloaded, or is not the pinned one.",
    "usage.missing_package": "An optional package that this command needs is not installed.",
    "usage.store": "The store named by the user cannot be opened, or is not one of ours.",
    "usage.store_in_use": "Another process has the store open.",
    "config.invalid": "Settings that are each valid but do not fit together.",
    "align.unsupported": "A tokenizer whose ids a byte table cannot represent; it is never approximated.",
    "align.sequence": "Sequences, masks or offsets to align that do not fit each other.",
    "align.content": "A message's content does not stand verbatim in what the chat template makes of it.",
    "align.template": "A chat template that cannot be rendered or read for what is asked of it.",
    "align.overlength": "A row that is longer than a context length.",
    "loss.input": "Tensors handed to a loss that do not fit each other or what the loss needs.",
    "teacher.unreachable": "No connection to the teacher server, or no answer within the deadline.",
    "teacher.refused": "The teacher server refused the request (a 4xx answer).",
    "teacher.failed": "The teacher server failed on the request (a 5xx answer).",
    "teacher.bad_reply": "The teacher's reply is not what was asked for; no value of it is used.",
    "teacher.no_route": "No way of asking the teacher server works; each says why.",
    "teacher.worker_lost": "The process that read a teacher's reply died.",
    "teacher.changed": "A teacher server holds another model than before, or than the other servers.",
    "teacher.quarantined": "A sequence that broke teacher servers each time is not sent again.",
    "student.unreachable": "No connection to the student server, or no answer within the deadline.",
    "student.refused": "The student server refused the request (a 4xx answer).",
    "student.failed": "The student server failed on the request (a 5xx answer).",
    "student.bad_reply": "The student's reply is not what was asked for; no value of it is used.",
    "student.no_token_ids": "The student server returns no token ids, so tokens cannot be trusted.",
    "wire.invalid_group": "A posted group breaks the contract; nothing of it was stored.",
    "wire.bad_encoding": "A request body that cannot be decompressed or parsed.",
    "wire.too_large": "A request body above the limit, compressed or inflated.",
    "wire.too_slow": "A request body that did not come within the time it has.",
    "wire.unknown_type": "A media type or content encoding that the route does not speak.",
    "wire.invalid_request": "A request whose fields are not what the route takes.",
    "api.unreachable": "No connection to the trajectory API, or no answer within the deadline.",
    "api.refused": "The trajectory API refused the request.",
    "api.failed": "The trajectory API failed on the request (a 5xx answer).",
    "api.queue_full": "The queue is full; the same request can be repeated later.",
    "api.not_registered": "The trainer or environment must register first.",
    "api.unauthorized": "The request carries no token, or none that is known.",
    "api.forbidden": "The token's role does not allow this request.",
    "api.unknown_route": "No such route, or not with this method.",
    "api.unknown_env": "No environment has this id.",
    "api.busy": "Too many request bodies are being read; the same request can be repeated later.",
    "api.draining": "The API is stopping and hands out no more batches.",
    "api.worker_lost": "The process that worked on a request body died.",
    "api.unknown_batch": "The store knows no such batch, or not as this trainer's.",
    "api.unknown_trainer": "The store knows no such trainer.",
    "api.lease_lost": "The batch was taken back or delivered again since it was leased.",
    "store.failed": "The store cannot read or write; nothing of the request was done.",
    "train.not_finite": "The loss or a gradient is not finite; the step was not applied.",
    "train.no_target": "Batches carry nothing that the losses of the run can learn from.",
    "train.no_environment": "Every environment has left, and what is queued makes no batch.",
    "train.refresh_failed": "The student server did not take the new weights.",
    "run.child_died": "A process of a supervised run ended before its time.",
    "run.failed": "The run failed for a reason that no other code names.",
    "run.not_ready": "A process of a supervised run was not ready in time.",
    "internal.error": "A defect of atroposlib itself; please report it with its traceback.",
}


class AtroposError(Exception):
    """A failure told in one line: code, what, where, got and expected, and the fix.

    Args:
        what: The result in words, without a full stop.
        code: Key of :data:`CODES`; the class's default when omitted.
        where: YAML line, field path, URL or teacher name.
        got: What was found.
        expected: What was wanted.
        fix: What the user can do about it.

    Attributes:
        timed_out: Whether the request's deadline passed, which is no sign that the server is away.
        servers_at_fault: Whether no server could take the request whatever it was, until somebody mends one.
    """

    default_code: ClassVar[str] = "run.failed"
    exit_code: ClassVar[int] = EXIT_FAILED
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        what: str,
        *,
        code: str | None = None,
        where: str | None = None,
        got: object = None,
        expected: object = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what)
        self.code = code or self.default_code
        if self.code not in CODES:
            raise KeyError(f"error code {self.code!r} is not in CODES")
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.fix = fix
        self.timed_out = False
        self.servers_at_fault = False

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        facts = [
            f"{name} {value}"
            for name, value in (("got", self.got), ("expected", self.expected))
            if value is not None
        ]
        detail = f" ({', '.join(facts)})" if facts else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{where}{self.what}{detail}{fix} [{self.code}]"

    def problem(self) -> dict[str, Any]:
        """The error as the members of an RFC 9457 problem document."""
        members = {
            "type": "about:blank",
            "title": CODES[self.code],
            "status": self.http_status,
            "detail": str(self),
            "code": self.code,
            "where": self.where,
            "got": None if self.got is None else str(self.got),
            "expected": None if self.expected is None else str(self.expected),
            "fix": self.fix,
        }
        return {name: value for name, value in members.items() if value is not None}


class UsageError(AtroposError):
    """A flag, a file or a value that the user can correct."""

    default_code = "usage.bad_value"
    exit_code = EXIT_USAGE
    http_status = 400


class ConfigError(UsageError, ValueError):
    """Settings that do not fit together."""

    default_code = "config.invalid"


class TeacherError(AtroposError):
    """A teacher's answer that cannot be used."""

    default_code = "teacher.bad_reply"
    http_status = 502


class TeacherUnreachable(TeacherError):
    """A teacher that does not answer."""

    default_code = "teacher.unreachable"
    exit_code = EXIT_TEACHER_UNREACHABLE
    http_status = 504


class StudentError(AtroposError):
    """A student server's answer that cannot be used."""

    default_code = "student.bad_reply"
    http_status = 502


class AlignError(AtroposError, ValueError):
    """A sequence or a conversation that cannot be aligned as it is."""

    default_code = "align.sequence"
    http_status = 422


class LossError(AtroposError, ValueError):
    """Tensors that a loss cannot take as they are."""

    default_code = "loss.input"


class WireError(AtroposError, ValueError):
    """A group or request body that breaks the contract."""

    default_code = "wire.invalid_group"
    http_status = 422


class ApiError(AtroposError):
    """The trajectory API refused or cannot be reached."""

    default_code = "api.refused"
    http_status = 409


class RunError(AtroposError):
    """A part of a supervised run failed."""

    default_code = "run.failed"

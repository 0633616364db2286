"""The edge of every command: what it raised becomes one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator

from atroposlib.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    AtroposError,
    RunError,
    UsageError,
)

# The extra of this package that brings each optional module.
EXTRAS = {
    "datasets": "hub",
    "gguf": "demo",
    "pyarrow": "parquet",
    "torch": "train",
    "vllm": "vllm",
    "wandb": "wandb",
}


def guarded(action: Callable[[], int | None]) -> int:
    """Run a command and return its exit code, whatever it raises.

    0 for None, 2 for what the user can correct, 3 for a teacher that does not answer, 130 for Ctrl-C, 1 for
    any other failure. With ATROPOS_DEBUG=1 in the environment an unexpected exception shows its traceback.
    """
    try:
        code = action()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _tell(["interrupted"], EXIT_INTERRUPTED)
    except SystemExit as end:
        return _exit_code(end)
    except BrokenPipeError as error:
        return EXIT_FAILED if _close_broken_stdout() else _fail(error)
    # The edge of the process: every failure ends here, told in one line.
    except Exception as error:  # noqa: BLE001
        return _fail(error)
    return EXIT_OK if code is None else int(code)


def _fail(error: Exception) -> int:
    told = _as_told(error)
    if os.environ.get("ATROPOS_DEBUG") == "1" and told is not error:
        traceback.print_exception(error)
    return _tell(lines_of(told), told.exit_code)


def _as_told(error: Exception) -> AtroposError:
    """The error of the vocabulary that stands for an exception."""
    if isinstance(error, ExceptionGroup):
        # A TaskGroup wraps what its tasks raise; the first known failure explains the others.
        known = [member for member in error.exceptions if isinstance(member, AtroposError)]
        return _as_told((known or error.exceptions)[0])
    if isinstance(error, AtroposError):
        return error
    if isinstance(error, ModuleNotFoundError) and (root := (error.name or "").partition(".")[0]) in EXTRAS:
        return UsageError(
            f"the package {root} is not installed",
            code="usage.missing_package",
            fix=f"pip install 'atroposlib[{EXTRAS[root]}]'",
        )
    if isinstance(error, OSError):
        return _system_error(error)
    return _invalid_settings(error) or _internal(error)


def _system_error(error: OSError) -> AtroposError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            "the port is taken by another process",
            code="usage.port_in_use",
            got=str(error),
            fix="choose another port with --port",
        )
    kind = type(error).__name__
    return RunError(f"{kind}: {error}" if str(error) else kind)


def _invalid_settings(error: Exception) -> AtroposError | None:
    """The mistakes of a settings class that was built without :func:`atroposlib.config.merge.build`."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return None
    from atroposlib.config.mistakes import Mistakes, from_title

    return Mistakes(from_title(error))


def _internal(error: Exception) -> AtroposError:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")
    ]
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
    return RunError(
        f"internal error: {type(error).__name__}: {error}",
        code="internal.error",
        where=where,
        fix="ATROPOS_DEBUG=1 shows the traceback",
    )


def lines_of(error: AtroposError) -> Iterator[str]:
    """What is printed about an error: one line a mistake."""
    for single in getattr(error, "errors", [error]):
        yield " ".join(str(single).split())


def _tell(lines: Iterator[str] | list[str], code: int) -> int:
    for line in lines:
        sys.stderr.write(line + "\n")
    sys.stderr.flush()
    return code


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or EXIT_OK
    return _tell([str(end.code)], EXIT_FAILED)


def _close_broken_stdout() -> bool:
    """Whether it is stdout whose reader is gone; it then writes to nowhere, so that the exit stays silent."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return False
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    gone = any(event & select.POLLERR for _, event in poller.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return gone

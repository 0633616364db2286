from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from atroposlib.config.exits import guarded
from atroposlib.errors import RunError, TeacherUnreachable, UsageError


def _raise(error: BaseException) -> Callable[[], int | None]:
    def action() -> int | None:
        raise error

    return action


class Limits(BaseModel):
    size: int


def _invalid() -> int | None:
    Limits.model_validate({"size": "s3cret"})
    return None


@pytest.mark.parametrize(
    ("action", "code", "line"),
    [
        (lambda: None, 0, ""),
        (lambda: 3, 3, ""),
        (_raise(UsageError("no", where="here")), 2, "here: no [usage.bad_value]"),
        (_raise(RunError("died")), 1, "died [run.failed]"),
        (_raise(TeacherUnreachable("gone")), 3, "gone [teacher.unreachable]"),
        (_raise(KeyboardInterrupt()), 130, "interrupted"),
        (_raise(TimeoutError()), 1, "TimeoutError [run.failed]"),
        (_raise(TimeoutError("after 3 s")), 1, "TimeoutError: after 3 s [run.failed]"),
        (_raise(ConnectionRefusedError(111, "refused")), 1, "ConnectionRefusedError: [Errno 111] refused"),
        (_raise(BrokenPipeError(32, "a socket")), 1, "BrokenPipeError: [Errno 32] a socket [run.failed]"),
        (_raise(OSError("two\nlines")), 1, "OSError: two lines [run.failed]"),
        (_raise(SystemExit(4)), 4, ""),
        (_raise(SystemExit()), 0, ""),
        (_raise(SystemExit("bye")), 1, "bye"),
        (
            _raise(ModuleNotFoundError("no torch", name="torch.nn")),
            2,
            "the package torch is not installed; pip install 'atroposlib[train]' [usage.missing_package]",
        ),
        (
            _invalid,
            2,
            "Limits.size: Input should be a valid integer, unable to parse string as an integer",
        ),
        (
            _raise(ExceptionGroup("tasks", [ValueError("x"), TeacherUnreachable("gone")])),
            3,
            "gone [teacher.unreachable]",
        ),
    ],
)
def test_what_a_command_raises_becomes_a_code_and_one_line(
    action: Callable[[], int | None], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(action) == code
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert len(err.splitlines()) == (1 if line else 0)
    assert "s3cret" not in err


def test_an_unexpected_error_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATROPOS_DEBUG", raising=False)
    assert guarded(_raise(KeyError("x"))) == 1
    line = capsys.readouterr().err
    assert len(line.splitlines()) == 1
    assert "internal error: KeyError: 'x'; ATROPOS_DEBUG=1 shows the traceback [internal.error]" in line
    assert __file__ in line
    monkeypatch.setenv("ATROPOS_DEBUG", "1")
    assert guarded(_raise(KeyError("x"))) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_busy_port_is_the_users_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def listen() -> None:
            await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)

        assert guarded(lambda: asyncio.run(listen())) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the port is taken" in line
    assert line.endswith("[usage.port_in_use]")


def _python(code: str, **how: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        **how,
    )


def test_ctrl_c_in_a_running_loop_says_one_word_and_ends_with_130() -> None:
    # A shell starts what it runs in the background with SIGINT ignored, and children inherit that.
    code = """
import asyncio, signal, sys
from atroposlib.config.exits import guarded
signal.signal(signal.SIGINT, signal.default_int_handler)
async def wait():
    print("ready", flush=True)
    await asyncio.Event().wait()
sys.exit(guarded(lambda: asyncio.run(wait())))
"""
    with _python(code) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "interrupted\n")


def test_a_reader_that_went_away_is_no_news() -> None:
    code = """
import sys
from atroposlib.config.exits import guarded
def talk():
    sys.stdin.read()
    for _ in range(10000):
        print("a line of a list that nobody reads any more")
sys.exit(guarded(talk))
"""
    with _python(code, stdin=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.close()
        assert child.stderr.read() == ""
    assert child.returncode == 1

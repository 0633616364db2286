"""The supervisor with children that die, hang, or do not want to end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from atroposlib.demo.processes import ChildDied, ChildSpec, Supervisor, free_ports
from atroposlib.errors import EXIT_TEACHER_UNREACHABLE, RunError, TeacherUnreachable
from tests.support.processes import marked_processes, until

SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
    "time.sleep(600)"
)
PARENT = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    "print('born', flush=True); import time; time.sleep(600)"
)
SERVER = (
    "from http.server import *; HTTPServer(('127.0.0.1', {port}), SimpleHTTPRequestHandler).serve_forever()"
)


def python(name: str, code: str, **changes: object) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-c", code), **changes)  # type: ignore[arg-type]


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path / "logs", grace_s=5)


async def test_a_child_that_dies_is_told_with_its_last_lines(supervisor: Supervisor) -> None:
    code = "import sys; print('one'); print(); print('two'); sys.exit(4)"
    await supervisor.start(python("trainer", code, ends=True))
    with pytest.raises(ChildDied, match="exit code 4") as caught:
        await supervisor.watch()
    assert caught.value.tail == ["one", "two"]
    assert caught.value.exit_code == 1
    await supervisor.stop_all()


async def test_a_killed_child_is_told_by_its_signal(supervisor: Supervisor) -> None:
    await supervisor.start(python("api", "import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(ChildDied, match="SIGKILL"):
        await supervisor.watch()
    await supervisor.stop_all()


async def test_a_server_that_ends_well_has_died_too(supervisor: Supervisor) -> None:
    await supervisor.start(python("api", "pass"))
    with pytest.raises(ChildDied, match="exit code 0"):
        await supervisor.watch()
    await supervisor.stop_all()


async def test_exit_code_3_means_that_the_teacher_is_away(supervisor: Supervisor) -> None:
    await supervisor.start(python("environment", f"import sys; sys.exit({EXIT_TEACHER_UNREACHABLE})"))
    with pytest.raises(TeacherUnreachable) as caught:
        await supervisor.watch()
    assert caught.value.exit_code == EXIT_TEACHER_UNREACHABLE
    assert isinstance(caught.value.__cause__, ChildDied)
    await supervisor.stop_all()


async def test_a_child_that_may_end_is_no_death(supervisor: Supervisor) -> None:
    await supervisor.start(python("trainer", "pass", ends=True))
    await supervisor.ended("trainer")
    watch = asyncio.create_task(supervisor.watch())
    await supervisor.stop_all()
    assert not watch.done()
    watch.cancel()


async def test_a_child_that_is_stopped_is_no_death(supervisor: Supervisor) -> None:
    await supervisor.start(python("api", SLEEP))
    watch = asyncio.create_task(supervisor.watch())
    await supervisor.stop("api")
    await supervisor.stop_all()
    assert not watch.done()
    watch.cancel()


async def test_a_child_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, grace_s=0.3)
    await supervisor.start(python("deaf", STUBBORN))
    await until(lambda: "deaf" in (tmp_path / "deaf.log").read_text())
    await supervisor.stop_all()
    await supervisor.ended("deaf")


async def test_hurry_does_not_wait_for_the_grace_period(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, grace_s=3600)
    await supervisor.start(python("deaf", STUBBORN))
    await until(lambda: "deaf" in (tmp_path / "deaf.log").read_text())
    supervisor.hurry()
    await supervisor.stop_all()


async def test_what_a_child_has_started_ends_with_it(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, grace_s=5)
    await supervisor.start(python("parent", PARENT, environment={"ATROPOS_RUN": str(tmp_path)}))
    await until(lambda: "born" in (tmp_path / "parent.log").read_text())
    assert len(marked_processes(tmp_path)) == 2
    await supervisor.stop_all()
    await until(lambda: not marked_processes(tmp_path))


async def test_ready_waits_for_the_answer(supervisor: Supervisor) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/"
    await supervisor.start(python("api", SERVER.format(port=port), ready_url=url))
    await supervisor.ready(["api"], timeout_s=30)
    await supervisor.stop_all()


async def test_a_child_that_is_never_ready_is_told(supervisor: Supervisor) -> None:
    (port,) = free_ports(1)
    await supervisor.start(python("api", SLEEP, ready_url=f"http://127.0.0.1:{port}/"))
    with pytest.raises(RunError, match=r"was not ready in time.*run\.not_ready"):
        await supervisor.ready(["api"], timeout_s=0.5)
    await supervisor.stop_all()


async def test_output_and_variables_reach_the_child(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "import os, sys; sys.stderr.write(os.environ['COLOUR'])"
    await supervisor.start(python("trainer", code, environment={"COLOUR": "blue"}, ends=True))
    await supervisor.ended("trainer")
    assert (tmp_path / "logs" / "trainer.log").read_text() == "blue"
    await supervisor.stop_all()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a child to its parent")
async def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
from atroposlib.demo.processes import ChildSpec, Supervisor
async def main():
    supervisor = Supervisor(Path({str(tmp_path)!r}), grace_s=5)
    command = (sys.executable, "-c", {SLEEP!r})
    await supervisor.start(ChildSpec("child", command, {{"ATROPOS_RUN": {str(tmp_path)!r}}}))
    await asyncio.sleep(600)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        await until(lambda: len(marked_processes(tmp_path)) == 1)
    finally:
        parent.kill()
        await parent.wait()
    await until(lambda: not marked_processes(tmp_path))


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20

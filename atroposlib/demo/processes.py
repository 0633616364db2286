"""Runs the parts of a demo as supervised child processes, none of which outlives it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import aiohttp

from atroposlib.errors import EXIT_TEACHER_UNREACHABLE, RunError, TeacherUnreachable

TAIL_LINES = 15
POLL_S = 0.2
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How one part is started and watched.

    Attributes:
        name: Name of the part and of its log file.
        command: Program and arguments.
        environment: Variables beside those inherited.
        ready_url: Answers 200 once the part is ready; None for a part that nobody calls.
        ends: Whether exit code 0 before the end of the run is a regular end.
        niceness: Added to the scheduling niceness.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_url: str | None = None
    ends: bool = False
    niceness: int = 0


class ChildDied(RunError):
    """A part that ended before its time; carries the last lines of its log."""

    default_code = "run.child_died"

    def __init__(self, name: str, returncode: int, tail: list[str], log: Path) -> None:
        super().__init__(f"{name} ended before its time", where=str(log), got=_exit_words(returncode))
        self.name = name
        self.returncode = returncode
        self.tail = tail


class _Child:
    def __init__(self, spec: ChildSpec, process: asyncio.subprocess.Process, log: Path) -> None:
        self.spec = spec
        self.process = process
        self.log = log
        self.stopping = False
        self.ended: asyncio.Task[int] = asyncio.create_task(process.wait())

    def has_died(self) -> bool:
        """Whether the child, which has ended, should not have."""
        return not self.stopping and not (self.spec.ends and self.ended.result() == 0)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the child and whatever it has started; each child leads a process group."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return


class Supervisor:
    """Starts, watches and ends the children of one run. Leave it only through :meth:`stop_all`."""

    def __init__(self, log_dir: Path, *, grace_s: float) -> None:
        self._log_dir = log_dir
        self._grace_s = grace_s
        self._children: dict[str, _Child] = {}
        self._deaths: asyncio.Queue[_Child] = asyncio.Queue()
        self._guards: list[asyncio.Task[None]] = []
        self._hurry = asyncio.Event()
        log_dir.mkdir(parents=True, exist_ok=True)

    async def start(self, spec: ChildSpec) -> None:
        """Start a child in a session and process group of its own, its output going to its log."""
        log = self._log_dir / f"{spec.name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **spec.environment},
                start_new_session=True,
                preexec_fn=_tie_to_parent(spec.niceness),
            )
        child = _Child(spec, process, log)
        self._children[spec.name] = child
        self._guards.append(asyncio.create_task(self._guard(child)))

    async def ready(self, names: Iterable[str], timeout_s: float) -> None:
        """Wait until each of these children answers its ready URL.

        Raises:
            RunError: One of them was not ready within ``timeout_s`` seconds.
        """
        deadline = time.monotonic() + timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            await asyncio.gather(*(self._ready(session, self._children[name], deadline) for name in names))

    async def watch(self) -> None:
        """Wait for a child that ends before its time, and raise for it.

        Raises:
            TeacherUnreachable: The child ended with the exit code that says so.
            ChildDied: It ended in any other way.
        """
        _raise_for(await self._deaths.get())

    async def ended(self, name: str) -> None:
        """Wait until a child has ended; raises as :meth:`watch` does when it has died."""
        child = self._children[name]
        await asyncio.shield(child.ended)
        if child.has_died():
            _raise_for(child)

    async def stop(self, *names: str) -> None:
        """End these children: ask, wait for the grace period, then force."""
        children = [self._children[name] for name in names if name in self._children]
        for child in children:
            child.stopping = True
            child.signal_group(signal.SIGTERM)
        await self._wait_for_end(children)
        for child in children:
            # Also when the child has ended, for what it may have left in its group.
            child.signal_group(signal.SIGKILL)
            await child.ended

    async def stop_all(self) -> None:
        """End every child."""
        await self.stop(*self._children)
        await asyncio.gather(*self._guards)

    def hurry(self) -> None:
        """Cut every grace period short from now on."""
        self._hurry.set()

    async def _guard(self, child: _Child) -> None:
        await asyncio.shield(child.ended)
        if child.has_died():
            self._deaths.put_nowait(child)

    async def _ready(self, session: aiohttp.ClientSession, child: _Child, deadline: float) -> None:
        if child.spec.ready_url is None:
            return
        while not await _answers(session, child.spec.ready_url):
            if time.monotonic() > deadline:
                raise RunError(
                    f"{child.spec.name} was not ready in time",
                    code="run.not_ready",
                    where=str(child.log),
                    expected=f"200 from {child.spec.ready_url}",
                    fix="see its log, or raise --ready-timeout-s",
                )
            await asyncio.sleep(POLL_S)

    async def _wait_for_end(self, children: list[_Child]) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        ended = asyncio.create_task(_all_ended(children))
        try:
            await asyncio.wait([hurry, ended], timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            ended.cancel()


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that no process listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def log_tail(log: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log file that hold anything."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()][-lines:]


def _raise_for(child: _Child) -> NoReturn:
    returncode = child.ended.result()
    died = ChildDied(child.spec.name, returncode, log_tail(child.log), child.log)
    if returncode == EXIT_TEACHER_UNREACHABLE:
        raise TeacherUnreachable(
            f"{child.spec.name} cannot reach its teacher", where=str(child.log)
        ) from died
    raise died


async def _all_ended(children: list[_Child]) -> None:
    for child in children:
        await asyncio.shield(child.ended)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _tie_to_parent(niceness: int) -> Callable[[], None]:
    """What a child does before its program starts: it dies with this process, even after SIGKILL."""
    parent = os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def tie() -> None:
        os.nice(niceness)
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the line above took effect.
        if os.getppid() != parent:
            os._exit(1)

    return tie


def _exit_words(returncode: int) -> str:
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"

"""Runs `atropos demo` as its users do, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DemoRun:
    """What a demo left behind: exit code, output and directory."""

    returncode: int
    stdout: str
    stderr: str
    directory: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The members of summary.json."""
        members: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return members

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind in metrics.jsonl."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]


async def start_demo(
    directory: Path, *options: str, environment: dict[str, str] | None = None
) -> asyncio.subprocess.Process:
    """Start `atropos demo` with its results in a directory."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "atroposlib.cli.main", "demo", "--out", str(directory), *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )


async def finish(process: asyncio.subprocess.Process, directory: Path) -> DemoRun:
    """Wait for a demo to end."""
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return DemoRun(process.returncode, stdout.decode(), stderr.decode(), directory)


def logs(run: DemoRun) -> str:
    """Everything a failed run has to say, for the message of an assertion."""
    parts = [f"== {file.name}\n{file.read_text()[-3000:]}" for file in run.directory.glob("logs/*.log")]
    return "\n".join([run.stdout, run.stderr, *parts])

"""Where everything of one run lies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from atroposlib.errors import UsageError

JOURNALS = ("demo", "environment", "trainer", "evaluator")
"""The parts that keep a journal."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The directory of a run and what stands in it."""

    root: Path

    @property
    def logs(self) -> Path:
        """Directory of the parts' output, ``<part>.log`` each."""
        return self.root / "logs"

    @property
    def student(self) -> Path:
        """Directory of the pruned student."""
        return self.root / "student"

    @property
    def checkpoints(self) -> Path:
        """Directory in which the trainer saves ``step-<n>``."""
        return self.root / "checkpoints"

    @property
    def queue(self) -> Path:
        """The API's groups and state; it goes on where it was when it is started on this file again."""
        return self.root / "queue.sqlite3"

    @property
    def config(self) -> Path:
        """The resolved settings of the demo and of every part."""
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Every event of every part, in time order."""
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """The figures of the run."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """The run as a page."""
        return self.root / "report.html"

    def part_config(self, name: str) -> Path:
        """The file of settings that a part is started with."""
        return self.root / "config" / name

    def journal(self, part: str) -> Path:
        """The journal of a part."""
        return self.root / "journal" / f"{part}.jsonl"


def new_run(out: Path | None) -> RunFiles:
    """Make the directory of a new run: ``out``, or ``runs/<time>``.

    Raises:
        UsageError: The directory holds something already, or cannot be made.
    """
    root = (out or Path("runs") / time.strftime("%Y-%m-%d_%H-%M-%S")).resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        taken = any(root.iterdir())
    except OSError as error:
        raise UsageError(
            "the directory of the results cannot be made",
            code="usage.file",
            where=str(root),
            got=error.strerror,
        ) from error
    if taken:
        raise UsageError(
            "the directory of the results is not empty",
            code="usage.file",
            where=str(root),
            fix="pass another --out",
        )
    files = RunFiles(root)
    files.part_config("any").parent.mkdir()
    return files

"""Settings of whole runs of the trainer in tests, and what their journals say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atroposlib.config.trainer import TrainerSettings
from atroposlib.journal import read_journal


def make_settings(url: str, model: Path, work: Path, **changes: Any) -> TrainerSettings:
    """Two quick steps of eight sequences on the CPU."""
    given = {
        "model": str(model),
        "api_url": url,
        "output_dir": str(work / "checkpoints"),
        "journal_path": str(work / "journal.jsonl"),
        "device": "cpu",
        "batch_size": 8,
        "total_steps": 2,
        "learning_rate": 3e-2,
        "poll_interval_s": 0.01,
        "threads": 1,
    }
    return TrainerSettings(**(given | changes))


def events(work: Path, kind: str) -> list[dict[str, Any]]:
    """The journal's events of one kind."""
    return [event for event in read_journal(work / "journal.jsonl") if event["kind"] == kind]

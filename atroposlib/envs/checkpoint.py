"""Environment checkpoints: one small JSON file a trainer step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def checkpoint_path(checkpoint_dir: str, env_name: str, step: int) -> Path:
    """Where the checkpoint of an environment at a trainer step lies."""
    return Path(checkpoint_dir) / "env_checkpoints" / env_name / f"step-{step}.json"


def write_checkpoint(path: Path, data: dict[str, Any]) -> None:
    """Write ``data`` as JSON so that a reader sees the old file or the whole new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(data), encoding="utf-8")
    os.replace(partial, path)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The data of a checkpoint; empty when there is no such file."""
    if not path.exists():
        return {}
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data

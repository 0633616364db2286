"""The JSON-lines file that groups are kept in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atroposlib.envs.api_client import to_json


def free_path(path: Path) -> Path:
    """The path itself, or with _1, _2, .. behind its stem when files of these names exist already."""
    if not path.exists():
        return path
    names = (path.with_stem(f"{path.stem}_{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


def append_group(path: Path, group: Mapping[str, Any]) -> None:
    """Append one group as a line."""
    with path.open("ab") as file:
        file.write(to_json(group) + b"\n")

"""Tell a model directory that is not there from a hub id, before anything heavy is imported or asked."""

from __future__ import annotations

from pathlib import Path

from atroposlib.errors import UsageError


def check_source(source: str) -> None:
    """Refuse a path that is no model directory; raises UsageError ``usage.model``."""
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError("the directory holds no config.json", code="usage.model", where=source)
    elif path.is_absolute() or source.startswith(".") or source.count("/") > 1:
        raise UsageError("no such model directory", code="usage.model", where=source)

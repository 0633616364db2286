"""An append-only JSON-lines record of what a process of a run did and when.

Every part of a run writes one; the report and the summary are computed from them alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Journal:
    """Appends one JSON object a line to a file, or does nothing when the path is None.

    Each line has ``kind`` and ``time`` (seconds since the epoch, end of the event).
    """

    def __init__(self, path: str | Path | None) -> None:
        self._path = Path(path) if path is not None else None
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event. Raises OSError when the file cannot be written."""
        if self._path is None:
            return
        line = json.dumps({"kind": kind, "time": time.time(), **fields}, allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @contextmanager
    def span(self, kind: str, **fields: Any) -> Iterator[None]:
        """Append one event with its ``start`` (seconds since the epoch) when the block ends."""
        start = time.time()
        try:
            yield
        finally:
            self.write(kind, start=start, **fields)


def read_journal(path: str | Path) -> list[dict[str, Any]]:
    """All whole lines of a journal, in order; an unfinished last line is left out."""
    file = Path(path)
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

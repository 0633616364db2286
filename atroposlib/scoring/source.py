"""The rows of a file of JSON lines, from any shard on, without holding the file in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import orjson

from atroposlib.errors import UsageError
from atroposlib.scoring.chat import RowError

LONGEST_LINE = 64 << 20
"""Bytes of a line; a longer one is passed over without being held."""

_BLOCK = 8 << 20
_ENDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """How many rows a file has, and where its shards begin.

    Attributes:
        rows: All of them.
        offsets: First byte of each shard; empty where rows are found without.
    """

    rows: int
    offsets: list[int]


class Source(Protocol):
    """A file of rows."""

    def extent(self, rows_per_shard: int) -> Extent:
        """Its rows and shards."""

    def rows(self, first: int, count: int, offset: int) -> Iterator[object]:
        """``count`` rows from number ``first`` on, which begins at byte ``offset``; a RowError for no row.

        Raises:
            UsageError: The file has changed.
        """


class JsonLines:
    """A file with one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def extent(self, rows_per_shard: int) -> Extent:
        """One pass over the file, in blocks."""
        offsets, rows, position, last = [0], 0, 0, b"\n"
        with self._path.open("rb") as file:
            while block := file.read(_BLOCK):
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                first = (-rows - 1) % rows_per_shard
                offsets += (ends[first::rows_per_shard] + position + 1).tolist()
                rows, position, last = rows + len(ends), position + len(block), block[-1:]
        if last != b"\n":
            rows += 1
        elif offsets[-1] == position:
            # The last line ends the last shard, so no shard begins after it.
            del offsets[-1]
        return Extent(rows, offsets)

    def rows(self, first: int, count: int, offset: int) -> Iterator[object]:
        """The objects of the lines; see :class:`Source`."""
        with self._path.open("rb") as file:
            if offset:
                file.seek(offset - 1)
                if file.read(1) != b"\n":
                    raise changed(self._path)
            for _ in range(count):
                line = file.readline(LONGEST_LINE)
                if not line:
                    raise changed(self._path)
                yield _object(line, file)


def _object(line: bytes, file: BinaryIO) -> object:
    if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
        while rest := file.readline(_BLOCK):
            if rest.endswith(b"\n"):
                break
        return RowError("line_length")
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return RowError("json", str(error))


def digest_of(path: Path) -> str:
    """Of the size and both ends of a file, which tell it from another without reading all of it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        digest = hashlib.sha256(f"{size} ".encode() + file.read(_ENDS))
        file.seek(max(0, size - _ENDS))
        digest.update(file.read())
    return digest.hexdigest()[:32]


def changed(path: Path) -> UsageError:
    """The error for a file that is not the one that the job began with."""
    return UsageError(
        "the input has changed since the job began",
        code="usage.file",
        where=str(path),
        fix="give the file as it was, or another output",
    )


def open_source(path: Path) -> Source:
    """The rows of a file by its name: .parquet, or JSON lines.

    Raises:
        UsageError: usage.file when there is no such file; usage.missing_package without pyarrow.
    """
    if not path.is_file():
        raise UsageError("no such file", code="usage.file", where="input", got=str(path))
    if path.suffix == ".parquet":
        from atroposlib.scoring.parquet import ParquetRows

        return ParquetRows(path)
    return JsonLines(path)

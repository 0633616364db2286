"""The rows of a Parquet file, row group by row group. Needs pyarrow (the extra ``parquet``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from atroposlib.errors import UsageError
from atroposlib.scoring.rows import MEMBERS
from atroposlib.scoring.source import Extent, changed

BATCH_ROWS = 64
"""Rows that are held at a time."""


class ParquetRows:
    """A Parquet file. Shards are asked for in rising order, so that every row group is decoded once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
        except (OSError, pa.ArrowInvalid) as error:
            raise UsageError(
                "this is no Parquet file", code="usage.file", where=str(path), got=error
            ) from error
        metadata = self._file.metadata
        counts = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        self._ends = np.cumsum(counts, dtype=np.int64)
        names = self._file.schema_arrow.names
        self._columns = [name for name in MEMBERS if name in names]
        self._open: Iterator[dict[str, Any]] = iter(())
        # Number of the row that comes next, before all of them while none is open.
        self._next = -1

    def extent(self, rows_per_shard: int) -> Extent:
        """As the file's footer tells."""
        return Extent(self._file.metadata.num_rows, [])

    def rows(self, first: int, count: int, offset: int) -> Iterator[object]:
        """The rows as mappings; see :class:`atroposlib.scoring.source.Source`."""
        self._go_to(first)
        for _ in range(count):
            row = next(self._open, None)
            if row is None:
                raise changed(self._path)
            self._next += 1
            yield row

    def _go_to(self, row: int) -> None:
        group = int(np.searchsorted(self._ends, row, side="right"))
        begin = int(self._ends[group - 1]) if group else 0
        if not begin <= self._next <= row:
            self._open, self._next = self._from(group), begin
        while self._next < row and next(self._open, None) is not None:
            self._next += 1

    def _from(self, group: int) -> Iterator[dict[str, Any]]:
        later = range(group, len(self._ends))
        for batch in self._file.iter_batches(BATCH_ROWS, row_groups=later, columns=self._columns):
            yield from batch.to_pylist()

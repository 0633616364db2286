"""The plan of a job: its input, its shards and what is asked of whom; written once, the same ever after."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.errors import UsageError
from atroposlib.scoring.source import Extent, Source, digest_of
from atroposlib.wire.shards import JOB_FILE, create_job, read_job

SAME = ("input", "rows_per_shard", "asked")
"""Members of the job that whoever goes on with it must agree in."""


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of a shard.

    Attributes:
        number: Of the shard, from 0.
        first: Number of its first row.
        count: Its rows.
        offset: Byte at which the first one begins, 0 where that is not needed.
    """

    number: int
    first: int
    count: int
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards of a job."""

    extent: Extent
    rows_per_shard: int

    @property
    def shards(self) -> int:
        """How many there are."""
        return -(-self.extent.rows // self.rows_per_shard)

    def shard(self, number: int) -> ShardRows:
        """One of them."""
        first = number * self.rows_per_shard
        count = min(self.rows_per_shard, self.extent.rows - first)
        offset = self.extent.offsets[number] if self.extent.offsets else 0
        return ShardRows(number, first, count, offset)

    def rows_in(self, shards: Set[int]) -> int:
        """Rows of some of them together."""
        short = self.shards * self.rows_per_shard - self.extent.rows
        return len(shards) * self.rows_per_shard - (short if self.shards - 1 in shards else 0)


def open_plan(
    directory: Path, source: Source, path: Path, rows_per_shard: int, asked: Mapping[str, Any]
) -> Plan:
    """The plan of the job in a directory, made and written when there is none.

    Args:
        directory: Of the job; made when it is missing.
        source: The input.
        path: Its file.
        rows_per_shard: Rows of a shard.
        asked: Everything that decides what the shards hold, as JSON values.

    Raises:
        UsageError: The directory holds another job, or the input has changed.
    """
    wanted = {"input": digest_of(path), "rows_per_shard": rows_per_shard, "asked": dict(asked)}
    job = read_job(directory)
    if job is None:
        extent = source.extent(rows_per_shard)
        plan = Plan(extent, rows_per_shard)
        made = {**wanted, "rows": extent.rows, "shards": plan.shards, "offsets": extent.offsets}
        if create_job(directory, made):
            return plan
        # Another worker was faster.
        job = read_job(directory) or {}
    _require_same(job, wanted, directory)
    return Plan(Extent(job["rows"], job["offsets"]), rows_per_shard)


def _require_same(job: Mapping[str, Any], wanted: Mapping[str, Any], directory: Path) -> None:
    for name in SAME:
        before, now = job.get(name), wanted[name]
        if before == now:
            continue
        if name == "asked" and isinstance(before, Mapping):
            name = next(key for key in {**before, **now} if before.get(key) != now.get(key))
            before, now = before.get(name), now.get(name)
        raise UsageError(
            "the directory holds a job that was begun with other settings",
            where=f"{directory / JOB_FILE} {name}",
            got=now,
            expected=before,
            fix="give the settings it was begun with, or another output; or remove the directory",
        )

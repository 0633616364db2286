"""What became of a job's rows, from the manifests of its finished shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atroposlib.scoring.counts import Counts, counts_of
from atroposlib.scoring.plan import Plan
from atroposlib.wire.shards import finished_shards, read_shard, write_json

FILE = "summary.json"


def summarise(directory: Path, plan: Plan) -> dict[str, Any]:
    """Write ``summary.json`` and return what it says; ``complete`` once every row is counted.

    Raises:
        UsageError: A manifest cannot be read.
        OSError: The summary cannot be written.
    """
    counts = Counts()
    finished = sorted(finished_shards(directory))
    for number in finished:
        counts.add(counts_of(read_shard(directory, number).facts["counts"]))
    summary = {
        "complete": len(finished) == plan.shards,
        "shards": plan.shards,
        "finished_shards": len(finished),
        "input_rows": plan.extent.rows,
        **counts.facts(),
    }
    write_json(directory / FILE, summary)
    return summary


def told(summary: dict[str, Any]) -> str:
    """One line of it."""
    masked = _reasons(summary["masked"])
    refused = _reasons(summary["refused"])
    return (
        f"{summary['rows']} of {summary['input_rows']} rows: {summary['scored']} scored, {masked} masked, "
        f"{refused} refused; {summary['bytes'] / 1e6:.1f} MB"
    )


def _reasons(counted: dict[str, int]) -> str:
    listed = ", ".join(f"{reason} {count}" for reason, count in sorted(counted.items()))
    return f"{sum(counted.values())}{f' ({listed})' if listed else ''}"

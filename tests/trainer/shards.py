"""Data of a finished job, written without a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atroposlib.wire.frame import encode_group
from atroposlib.wire.shards import ShardWriter, create_job


def write_data(directory: Path, groups: Sequence[Any], *, per_shard: int = 3) -> Path:
    """The groups as the shards of a job; a group that is None is a row without a frame."""
    shards = range(0, len(groups), per_shard)
    create_job(directory, {"shards": len(shards), "name": directory.name})
    for number, first in enumerate(shards):
        writer = ShardWriter(directory, number)
        for row, group in enumerate(groups[first : first + per_shard], start=first):
            if group is not None:
                frame = encode_group(group, logprob_dtype="float32")
                writer.add(frame, row, len(group["tokens"]))
        writer.commit({"first": first})
    return directory

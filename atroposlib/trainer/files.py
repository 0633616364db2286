"""Batches out of the shards that ``atropos score`` wrote, in place of the trajectory API. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import UsageError
from atroposlib.trainer.checkpoint import CheckpointFacts
from atroposlib.trainer.leases import LeasedBatch
from atroposlib.types import Group
from atroposlib.wire.frame import decode_group
from atroposlib.wire.shards import FramePlace, is_finished, read_frame, read_job, read_shard

logger = logging.getLogger(__name__)

DIGEST_CHARACTERS = 16

_SEEDS = 1 << 64
"""numpy takes no negative seed."""


@dataclass(frozen=True, slots=True)
class ShardedData:
    """The N groups of a finished job, and where each of them lies.

    Attributes:
        directory: Of the job.
        files: The shards' files of frames.
        shards: int64 [N], index into ``files``.
        frames: int64 [N, 4], a :class:`FramePlace` in each row.
        digest: Tells these groups from any others.
    """

    directory: Path
    files: list[Path]
    shards: NDArray[np.int64]
    frames: NDArray[np.int64]
    digest: str

    def __len__(self) -> int:
        return len(self.frames)

    def sequences(self) -> NDArray[np.int64]:
        """Sequences of each group [N]."""
        return self.frames[:, FramePlace._fields.index("sequences")]

    def group(self, index: int) -> Group:
        """One group. Raises OSError, or WireError for a damaged frame."""
        place = FramePlace(*self.frames[index].tolist())
        return decode_group(read_frame(self.files[self.shards[index]], place))


def open_data(directory: Path) -> ShardedData:
    """The data in a directory of ``atropos score``.

    Raises:
        UsageError: usage.file when there is none, it is not finished, or it holds no group.
    """
    job = read_job(directory)
    if job is None:
        raise _not_usable("the directory holds no data of `atropos score`", directory)
    count = job["shards"]
    finished = sum(is_finished(directory, number) for number in range(count))
    if finished < count:
        raise _not_usable(
            "the data is not finished",
            directory,
            got=f"{finished} of {count} shards",
            fix="run the same `atropos score` again: it goes on where it was",
        )
    shards = [read_shard(directory, number) for number in range(count)]
    tables = [np.array(shard.frames, np.int64).reshape(-1, len(FramePlace._fields)) for shard in shards]
    frames = np.concatenate(tables) if tables else np.empty((0, len(FramePlace._fields)), np.int64)
    if not len(frames):
        raise _not_usable("the data holds no group", directory, fix="its summary.json says why")
    digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode() + frames.tobytes()).hexdigest()
    numbers = np.repeat(np.arange(count), [len(table) for table in tables])
    return ShardedData(directory, [shard.file for shard in shards], numbers, frames, digest)


def _not_usable(
    what: str, directory: Path, *, got: object = None, fix: str = "name the --output of a finished job"
) -> UsageError:
    return UsageError(what, code="usage.file", where=str(directory), got=got, fix=fix)


class FileBatches:
    """Hands out the groups of sharded data pass by pass, in an order that its seed decides.

    A batch holds the next groups with at most ``batch_size`` sequences together, or one larger group; it ends
    with the pass. Its id says how many groups of the endless row of passes lie before its end, so a
    checkpoint's ``batch_id`` is the place to go on from.

    Args:
        data: The groups.
        batch_size: Sequences of a batch at most.
        seed: Of the order; None keeps the order of the input.
        after: ``batch_id`` of the checkpoint to go on from, None to begin.

    Raises:
        UsageError: The checkpoint was trained on other data, or in another order.
    """

    def __init__(
        self, data: ShardedData, batch_size: int, seed: int | None, after: str | None = None
    ) -> None:
        self.stop = threading.Event()
        self._data = data
        self._batch_size = batch_size
        self._seed = seed
        self._name = hashlib.sha256(f"{data.digest} {seed}".encode()).hexdigest()[:DIGEST_CHARACTERS]
        self._taken = 0 if after is None else self._place_of(after)
        self._order = self._order_of(self._taken // len(data))
        self._step = 0

    @property
    def url(self) -> str:
        """The directory."""
        return str(self._data.directory)

    def status(self) -> None:
        """Nobody is waited for."""

    def lease(self, *, lease_s: float = math.inf) -> LeasedBatch | None:
        """The next batch, or None after a stop.

        Raises:
            WireError: A frame is damaged.
            OSError: A file cannot be read.
        """
        if self.stop.is_set():
            return None
        passed, begin = divmod(self._taken, len(self._data))
        if begin == 0:
            self._order = self._order_of(passed)
        end = self._end_of_batch(self._order, begin)
        groups = [self._data.group(int(index)) for index in self._order[begin:end]]
        self._taken += end - begin
        self._step += 1
        return LeasedBatch(f"{self._name}:{self._taken}", 1, math.inf, self._step, groups)

    def ack(self, batch: LeasedBatch) -> None:
        """Nobody else trains it."""

    def commit(self, batch_id: str) -> None:
        """The checkpoint itself keeps the place."""

    def close(self) -> None:
        """No batch comes after this."""
        self.stop.set()

    def batches_in(self, passes: int) -> int:
        """How many batches so many passes from the first on have."""
        count = 0
        for number in range(passes):
            order, end = self._order_of(number), 0
            while end < len(order):
                end = self._end_of_batch(order, end)
                count += 1
        return count

    def _end_of_batch(self, order: NDArray[np.int64], begin: int) -> int:
        """Place in a pass at which the batch that begins at ``begin`` ends."""
        # No group is smaller than one sequence.
        sizes = self._data.sequences()[order[begin : begin + self._batch_size]]
        fitting = int(np.searchsorted(np.cumsum(sizes), self._batch_size, side="right"))
        return begin + max(1, fitting)

    def _order_of(self, number: int) -> NDArray[np.int64]:
        if self._seed is None:
            return np.arange(len(self._data))
        return np.random.default_rng([self._seed % _SEEDS, number]).permutation(len(self._data))

    def _place_of(self, batch_id: str) -> int:
        name, _, taken = batch_id.partition(":")
        if name != self._name or not taken.isdecimal():
            raise UsageError(
                "the checkpoint was trained on other data, or in another order",
                where=self.url,
                got=batch_id,
                expected=f"{self._name}:...",
                fix="give the data, seed and shuffle of that run, or leave trainer_id out to begin anew",
            )
        return int(taken)


def open_files(settings: TrainerSettings, start: CheckpointFacts) -> tuple[TrainerSettings, FileBatches]:
    """The batches of ``settings.data`` after those in the checkpoint, and the settings with their steps.

    Raises:
        UsageError: As :func:`open_data` and :class:`FileBatches` do.
    """
    if settings.data is None:
        raise ValueError("there is no data to open")
    data = open_data(settings.data)
    seed = settings.seed if settings.shuffle else None
    batches = FileBatches(data, settings.batch_size, seed, start.batch_id)
    if "total_steps" not in settings.model_fields_set:
        steps = batches.batches_in(settings.epochs or 1)
        settings = settings.model_copy(update={"total_steps": steps})
    logger.info(
        "%d groups of %d sequences from %s; %d steps",
        len(data),
        data.sequences().sum(),
        settings.data,
        settings.total_steps,
    )
    return settings, batches

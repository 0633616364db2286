"""One shard that this worker writes: rows come in order, and the last one commits it."""

from __future__ import annotations

import threading
from pathlib import Path

from atroposlib.config.env import LogprobDtype
from atroposlib.scoring.asking import Answers, Panel
from atroposlib.scoring.counts import Counts
from atroposlib.scoring.plan import ShardRows
from atroposlib.scoring.rows import Refusal
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import encode_group
from atroposlib.wire.shards import ShardWriter


class OpenShard:
    """A claimed shard. Its methods work on files and large arrays, so they belong into a thread.

    Args:
        directory: Of the job.
        rows: The rows of the shard.
        dtype: Type in which logprobs are stored.

    Attributes:
        counts: What became of its rows so far.
    """

    def __init__(self, directory: Path, rows: ShardRows, dtype: LogprobDtype) -> None:
        self.rows = rows
        self.counts = Counts()
        self._dtype: LogprobDtype = dtype
        self._writer = ShardWriter(directory, rows.number)
        # A cancelled worker abandons the shard while a thread may still be committing it.
        self._busy = threading.Lock()

    def store(self, outcome: Answers | Refusal, panel: Panel) -> bool:
        """Take in what became of the next row; True when it was the last, and the shard is on the disk.

        Raises:
            WireError: The teachers' targets break the contract, which their replies' checks should have told.
            OSError: It cannot be written.
        """
        with self._busy:
            if isinstance(outcome, Refusal):
                self.counts.refuse(outcome)
            else:
                self._add(outcome, panel)
            if self.counts.rows < self.rows.count:
                return False
            self._writer.commit({"first": self.rows.first, "counts": self.counts.facts()})
            return True

    def _add(self, answers: Answers, panel: Panel) -> None:
        group = panel.build(answers, self.counts)
        if group is None:
            return
        check_group(group)
        frame = encode_group(group, logprob_dtype=self._dtype)
        self.counts.bytes += len(frame)
        self._writer.add(frame, answers.row.number, len(group.tokens))

    def abandon(self) -> None:
        """Forget what was written of it, once no thread works on it."""
        with self._busy:
            self._writer.abandon()

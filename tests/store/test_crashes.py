"""A writer killed at any moment has lost nothing that was answered, and its file is whole."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from atroposlib.store.sqlite import SqliteStore
from tests.store import crash_writer
from tests.store.support import conserved

CYCLES = 10


@dataclass
class Promises:
    """What the killed writers were told."""

    put: set[str] = field(default_factory=set)
    leased: dict[str, list[str]] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    committed: list[str] = field(default_factory=list)

    def take(self, lines: Iterable[str]) -> None:
        """Read a writer's lines; only its last one may be cut."""
        for line in lines:
            if not line.endswith("\n"):
                continue
            match line.split():
                case ["put", group_id]:
                    self.put.add(group_id)
                case ["leased", batch_id, groups]:
                    assert self.leased.setdefault(batch_id, groups.split(",")) == groups.split(",")
                case ["acked", batch_id]:
                    assert batch_id not in self.acked, "a batch was handed out after its ack"
                    self.acked.add(batch_id)
                case ["committed", batch_id]:
                    self.committed.append(batch_id)


def killed_writer(path: Path, cycle: int, seconds: float) -> list[str]:
    """What a writer printed that was killed so long after its first line."""
    command = [sys.executable, crash_writer.__file__, str(path), str(cycle)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        killer = threading.Timer(seconds, process.send_signal, [signal.SIGKILL])
        killer.start()
        lines = [first, *process.stdout]
        killer.join()
    assert process.returncode == -signal.SIGKILL, lines[-3:]
    return lines


def check_file(path: Path) -> None:
    """SQLite finds its file whole, and no group without its bytes."""
    db = sqlite3.connect(path)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        query = "SELECT count(*) FROM groups WHERE arrival NOT IN (SELECT arrival FROM payloads)"
        assert db.execute(query).fetchall() == [(0,)]
    finally:
        db.close()


async def check_store(path: Path, promises: Promises) -> None:
    """Every answered group is in the store once, with its own bytes or trained; batches as they were told."""
    store = await SqliteStore.open(path, 10**9, 10**12)
    stats = await store.stats()
    assert conserved(stats)
    ledger = store._ledger
    settled = store._file.settled(sorted(promises.put))
    assert promises.put <= ledger.groups.keys() | settled
    assert not ledger.groups.keys() & settled
    for group_id in list(ledger.groups)[::20]:
        assert await store.payload(group_id) == crash_writer.payload_of(group_id)
    for batch_id in promises.acked:
        assert batch_id in ledger.ended or ledger.batches[batch_id].state == "acked"
    assert all(ledger.ended[batch_id].outcome == "committed" for batch_id in promises.committed)
    for batch_id, batch in ledger.batches.items():
        assert list(batch.group_ids) == promises.leased.get(batch_id, list(batch.group_ids))
    in_batches = [group_id for batch in ledger.batches.values() for group_id in batch.group_ids]
    assert len(in_batches) == len(set(in_batches))
    assert (await store.run()).step >= len(promises.acked)
    await store.close()


async def test_a_killed_writer_has_lost_nothing_that_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite3"
    promises, moments = Promises(), random.Random(4)
    for cycle in range(CYCLES):
        promises.take(killed_writer(path, cycle, moments.uniform(0.05, 0.6)))
        check_file(path)
        await check_store(path, promises)
    assert len(promises.put) > 10 * CYCLES
    assert len(promises.committed) > CYCLES // 2

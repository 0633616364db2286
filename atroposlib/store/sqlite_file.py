"""One store in an SQLite file: its lock, connections, transactions. Everything here blocks; threads call it.

Each connection belongs to one thread: the writer, the reader of payloads, and the one that checkpoints, which
would otherwise hold up a write for a tenth of a second.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from atroposlib.errors import UsageError
from atroposlib.store import sqlite_rows
from atroposlib.store.ledger import DIGEST_S, REMEMBERED_IDS, REMEMBERED_S, Ledger
from atroposlib.store.records import Change

Durability = Literal["normal", "full"]

APPLICATION_ID = 0x41_54_52_4F
VERSION = 1

PAGE_BYTES = 16_384
"""Of 4, 16, 32 and 64 KiB the fastest for groups of megabytes; state changes stay small."""

CACHE_KIB = 2048
WAL_BYTES = 64 << 20
"""Length of the write-ahead log from which on writes wait until all of it is checkpointed."""

TRIMMED_AT_ONCE = 1000
BITE_ROWS, BITE_BYTES = 64, 4 << 20


class StoreFile:
    """An open SQLite file.

    Args:
        path: The file; made when it does not exist.
        durability: ``normal`` survives a killed process, ``full`` a power cut too.

    Raises:
        UsageError: usage.store_in_use, or usage.store when it cannot be opened or is something else.
    """

    def __init__(self, path: Path, durability: Durability) -> None:
        self.path = path
        self._lock = _lock(path)
        self._connections: list[sqlite3.Connection] = []
        try:
            self._writer = self._connect()
            self._prepare(durability)
            self._reader = self._connect()
            self._checkpointer = self._connect()
        except BaseException as error:
            self.close()
            if isinstance(error, sqlite3.Error):
                raise _not_usable(path, str(error)) from error
            raise

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=64)
        self._connections.append(db)
        db.execute(f"PRAGMA cache_size = {-CACHE_KIB}")
        return db

    def _prepare(self, durability: Durability) -> None:
        db = self._writer
        db.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        found = tuple(
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if tables and found != (APPLICATION_ID, VERSION):
            raise _not_usable(self.path, "it holds something else, or was written by another version")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {durability.upper()}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        db.execute("PRAGMA secure_delete = OFF")
        if not tables:
            marks = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            db.executescript(f"BEGIN; {sqlite_rows.SCHEMA} {marks} COMMIT;")

    def load(self, ledger: Ledger) -> None:
        """Bring an empty ledger to the state that the file holds.

        Raises:
            UsageError: usage.store when the file is damaged.
        """
        try:
            sqlite_rows.load(self._writer, ledger)
        except (sqlite3.Error, ValueError, KeyError) as error:
            raise _not_usable(self.path, f"it is damaged: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        for db in self._connections:
            db.close()
        os.close(self._lock)

    # --- the writer's thread ------------------------------------------------------------------------------

    def write(self, changes: Iterable[Change]) -> None:
        """Write all changes or none."""
        with _transaction(self._writer) as db:
            for change in changes:
                sqlite_rows.write(db, change)

    def settled(self, group_ids: Sequence[str]) -> set[str]:
        """Those of the ids whose groups were settled and are still remembered."""
        query = "SELECT 1 FROM settled WHERE group_id = ?"
        return {name for name in group_ids if self._writer.execute(query, (name,)).fetchone()}

    def forget(self, now: float) -> None:
        """Forget ids and bodies that are too old to be repeated; a part each time."""
        db = self._writer
        db.execute("DELETE FROM digests WHERE at <= ?", (now - DIGEST_S,))
        (last,) = db.execute("SELECT max(number) FROM settled").fetchone()
        oldest = db.execute("SELECT number, at FROM settled ORDER BY number LIMIT ?", (TRIMMED_AT_ONCE,))
        floor = (last or 0) - REMEMBERED_IDS
        old = [number for number, at in oldest if number <= floor or at <= now - REMEMBERED_S]
        if old:
            db.execute("DELETE FROM settled WHERE number <= ?", (old[-1],))

    def delete_bytes(self) -> bool:
        """Delete the bytes of a few settled groups; False when there are none."""
        rows = self._writer.execute(
            "SELECT arrival, size FROM garbage ORDER BY arrival LIMIT ?", (BITE_ROWS,)
        )
        bite: list[tuple[int]] = []
        total = 0
        for arrival, size in rows.fetchall():
            if bite and total + size > BITE_BYTES:
                break
            bite.append((arrival,))
            total += size
        if bite:
            with _transaction(self._writer) as db:
                db.executemany("DELETE FROM payloads WHERE arrival = ?", bite)
                db.executemany("DELETE FROM garbage WHERE arrival = ?", bite)
        return bool(bite)

    def reset(self, held: Iterable[tuple[int, int]]) -> None:
        """Forget everything; ``held`` are the arrivals and sizes of the groups that are kept."""
        with _transaction(self._writer) as db:
            db.executemany("INSERT INTO garbage VALUES (?, ?)", held)
            for statement in sqlite_rows.FORGET_ALL:
                db.execute(statement)

    # --- the other threads --------------------------------------------------------------------------------

    def read(self, arrival: int) -> bytes | None:
        """The bytes of a group, None when they were deleted."""
        row = self._reader.execute("SELECT body FROM payloads WHERE arrival = ?", (arrival,)).fetchone()
        return None if row is None else bytes(row[0])

    def checkpoint(self) -> bool:
        """Move written pages from the log into the file; returns whether the log has become long."""
        _, pages, _ = self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return bool(pages * PAGE_BYTES >= WAL_BYTES)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        # A full disk has ended the transaction already.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _lock(path: Path) -> int:
    # Another name of the file leads to the same lock.
    lock_path = f"{os.path.realpath(path)}.lock"
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_usable(path, str(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise UsageError(
            "another process has the store open",
            code="usage.store_in_use",
            where=str(path),
            fix="stop the other API, or give this one another --store",
        ) from error
    return lock


def _not_usable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"the store cannot be opened: {why}",
        code="usage.store",
        where=str(path),
        fix="name another file in an existing directory, or move this one away to start afresh",
    )

"""The SQLite file of a score cache: one frame a sequence. Everything here blocks; one thread calls it."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from atroposlib.errors import UsageError, WireError
from atroposlib.types import TeacherScores
from atroposlib.wire.container import Arrays, read, write

FORMAT = "atropos-scores"
APPLICATION_ID = 0x41_54_53_43
VERSION = 1
WAIT_S = 30.0
"""Seconds that another process may hold the file."""

SCHEMA = """
CREATE TABLE scores (key BLOB PRIMARY KEY, digest BLOB NOT NULL, frame BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE canaries (base TEXT, generation INTEGER, logprobs BLOB NOT NULL, PRIMARY KEY (base, generation));
"""

Logprobs = NDArray[np.float32]


class CacheFile:
    """Scores by key, and each teacher's logprobs of the canary.

    Raises:
        UsageError: usage.file when the file cannot be opened, or is something else.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(path)
            except BaseException:
                self._db.close()
                raise
        except sqlite3.Error as error:
            raise _unusable(path, str(error)) from error

    def _prepare(self, path: Path) -> None:
        db = self._db
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        found = tuple(
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if not tables:
            for statement in SCHEMA.strip().split("\n"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
        if tables and found != (APPLICATION_ID, VERSION):
            raise _unusable(path, "it holds something else, or was written by another version")

    def get(self, key: bytes) -> TeacherScores | None:
        """The scores under ``key``, None where there are none.

        Raises:
            WireError: The row is damaged; it is deleted.
        """
        row = self._db.execute("SELECT digest, frame FROM scores WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        digest, frame = row
        try:
            if _digest(key, frame) != digest:
                raise WireError("the row's digest is not its frame's", code="wire.bad_encoding")
            return _decode(frame)
        except WireError:
            self._db.execute("DELETE FROM scores WHERE key = ?", (key,))
            raise

    def put(self, key: bytes, scores: TeacherScores) -> None:
        """Keep ``scores`` in place of what was there."""
        frame = _encode(scores)
        self._db.execute("INSERT OR REPLACE INTO scores VALUES (?, ?, ?)", (key, _digest(key, frame), frame))

    def generation(self, base: str, logprobs: Logprobs, same: Callable[[Logprobs, Logprobs], bool]) -> int:
        """Number of the canary known under ``base`` that is the ``same``; it is added where none is."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            known = db.execute(
                "SELECT logprobs FROM canaries WHERE base = ? ORDER BY generation", (base,)
            ).fetchall()
            for number, (blob,) in enumerate(known):
                if same(np.frombuffer(blob, dtype="<f4"), logprobs):
                    return number
            added = (base, len(known), logprobs.astype("<f4").tobytes())
            db.execute("INSERT INTO canaries VALUES (?, ?, ?)", added)
            return len(known)
        finally:
            db.execute("COMMIT")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _encode(scores: TeacherScores) -> bytes:
    facts = {
        "start": scores.start,
        "model": scores.model,
        "tokenizer": scores.tokenizer,
        "server": scores.server,
    }
    arrays: Arrays = {
        "ids": scores.ids,
        "logprobs": scores.logprobs,
        "facts": np.frombuffer(orjson.dumps(facts), dtype=np.uint8),
    }
    if scores.extra_logprobs is not None:
        arrays["extra_logprobs"] = scores.extra_logprobs
    return write(arrays, "zstd", FORMAT)


def _decode(frame: bytes) -> TeacherScores:
    arrays = read(frame, kind=FORMAT)
    facts = orjson.loads(arrays["facts"].tobytes())
    return TeacherScores(
        ids=arrays["ids"],
        logprobs=arrays["logprobs"],
        extra_logprobs=arrays.get("extra_logprobs"),
        **facts,
    )


def _digest(key: bytes, frame: bytes) -> bytes:
    return hashlib.blake2b(frame, key=key, digest_size=16).digest()


def _unusable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"the score cache cannot be opened: {why}",
        code="usage.file",
        where=str(path),
        fix="name another file in an existing directory, or delete this one",
    )

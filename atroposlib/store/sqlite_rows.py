"""How a ledger's changes are written as rows of an SQLite file, and read back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from pydantic import TypeAdapter

from atroposlib.store.ledger import REMEMBERED_BATCHES, Ledger
from atroposlib.store.protocol import EnvRecord
from atroposlib.store.records import (
    Batch,
    BatchChanged,
    BatchEnded,
    Change,
    Counted,
    Ended,
    EnvChanged,
    GroupAdded,
    GroupSettled,
    Held,
    RunChanged,
    RunFacts,
    TrainerChanged,
    TrainerFacts,
    TrainerForgotten,
)

# A state change must never rewrite a row that holds a group's bytes, so these have a table of their own.
# Deleting them takes as long as writing them, so it is done later; until then they are garbage.
SCHEMA = """
CREATE TABLE groups (arrival INTEGER PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE payloads (arrival INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE garbage (arrival INTEGER PRIMARY KEY, size INTEGER NOT NULL);
CREATE TABLE settled (number INTEGER PRIMARY KEY, group_id TEXT NOT NULL UNIQUE, at REAL NOT NULL);
CREATE TABLE digests (digest TEXT PRIMARY KEY, group_id TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE batches (batch_id TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE ended (number INTEGER PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE run (number INTEGER PRIMARY KEY CHECK (number = 0), facts TEXT NOT NULL);
CREATE TABLE envs (env_id INTEGER PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE trainers (number INTEGER PRIMARY KEY, trainer_id TEXT NOT NULL UNIQUE, facts TEXT NOT NULL);
"""

FORGET_ALL = (
    "DELETE FROM groups",
    "DELETE FROM settled",
    "DELETE FROM digests",
    "DELETE FROM batches",
    "DELETE FROM ended",
    "DELETE FROM counters",
    "DELETE FROM run",
    "DELETE FROM envs",
    "DELETE FROM trainers",
)

_HELD = TypeAdapter(Held)
_BATCH = TypeAdapter(Batch)
_ENDED = TypeAdapter(Ended)
_RUN = TypeAdapter(RunFacts)
_ENV = TypeAdapter(EnvRecord)
_TRAINER = TypeAdapter(TrainerFacts)


def write(db: sqlite3.Connection, change: Change) -> None:
    """Write one change inside the transaction that is open."""
    match change:
        case GroupAdded(held, payload):
            _write_group(db, held, payload)
        case GroupSettled(held, at):
            _write_settled(db, held, at)
        case BatchChanged(batch):
            row = (batch.batch_id, _text(_BATCH.dump_json(batch)))
            db.execute("INSERT OR REPLACE INTO batches VALUES (?, ?)", row)
        case BatchEnded(ended):
            _write_ended(db, ended)
        case RunChanged(run):
            db.execute("INSERT OR REPLACE INTO run VALUES (0, ?)", (_text(_RUN.dump_json(run)),))
        case EnvChanged(env):
            db.execute("INSERT OR REPLACE INTO envs VALUES (?, ?)", (env.env_id, _text(_ENV.dump_json(env))))
        case TrainerChanged(trainer):
            db.execute(
                "INSERT INTO trainers (trainer_id, facts) VALUES (?, ?)"
                " ON CONFLICT (trainer_id) DO UPDATE SET facts = excluded.facts",
                (trainer.trainer_id, _text(_TRAINER.dump_json(trainer))),
            )
        case TrainerForgotten(trainer_id):
            db.execute("DELETE FROM trainers WHERE trainer_id = ?", (trainer_id,))
        case Counted(name, by):
            db.execute(
                "INSERT INTO counters VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                (name, by),
            )


def load(db: sqlite3.Connection, ledger: Ledger) -> None:
    """Bring an empty ledger to the state that the file holds."""
    ledger.apply(_changes(db))
    for digest, group_id, at in db.execute("SELECT digest, group_id, at FROM digests ORDER BY at"):
        ledger.digests[digest] = (group_id, at)
        ledger.digests.move_to_end(digest)
    # A number is never used again while the bytes of its former group may still be there.
    (last,) = db.execute("SELECT max(arrival) FROM garbage").fetchone()
    ledger.next_arrival = max(ledger.next_arrival, -1 if last is None else last + 1)


def _changes(db: sqlite3.Connection) -> Iterator[Change]:
    for (facts,) in db.execute("SELECT facts FROM groups ORDER BY arrival"):
        yield GroupAdded(_HELD.validate_json(facts))
    for (facts,) in db.execute("SELECT facts FROM batches"):
        yield BatchChanged(_BATCH.validate_json(facts))
    for (facts,) in db.execute("SELECT facts FROM ended ORDER BY number"):
        yield BatchEnded(_ENDED.validate_json(facts))
    for (facts,) in db.execute("SELECT facts FROM run"):
        yield RunChanged(_RUN.validate_json(facts))
    for (facts,) in db.execute("SELECT facts FROM envs ORDER BY env_id"):
        yield EnvChanged(_ENV.validate_json(facts))
    for (facts,) in db.execute("SELECT facts FROM trainers ORDER BY number"):
        yield TrainerChanged(_TRAINER.validate_json(facts))
    for name, value in db.execute("SELECT name, value FROM counters"):
        yield Counted(name, value)


def _write_group(db: sqlite3.Connection, held: Held, payload: bytes) -> None:
    facts = held.facts
    db.execute("INSERT INTO groups VALUES (?, ?)", (held.arrival, _text(_HELD.dump_json(held))))
    db.execute("INSERT INTO payloads VALUES (?, ?)", (held.arrival, payload))
    if facts.digest is not None:
        row = (facts.digest, facts.group_id, held.arrived_at)
        db.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", row)


def _write_settled(db: sqlite3.Connection, held: Held, at: float) -> None:
    db.execute("DELETE FROM groups WHERE arrival = ?", (held.arrival,))
    db.execute("INSERT INTO garbage VALUES (?, ?)", (held.arrival, held.facts.size))
    db.execute("INSERT OR REPLACE INTO settled (group_id, at) VALUES (?, ?)", (held.facts.group_id, at))


def _write_ended(db: sqlite3.Connection, ended: Ended) -> None:
    db.execute("DELETE FROM batches WHERE batch_id = ?", (ended.batch_id,))
    added = db.execute("INSERT INTO ended (facts) VALUES (?)", (_text(_ENDED.dump_json(ended)),))
    db.execute("DELETE FROM ended WHERE number <= ?", ((added.lastrowid or 0) - REMEMBERED_BATCHES,))


def _text(facts: bytes) -> str:
    return facts.decode()

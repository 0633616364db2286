"""What a store in a file promises beside the contract: restarts, damage, full disks, tidy files."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from atroposlib.errors import ApiError, UsageError
from atroposlib.store import ledger, sqlite, sqlite_file, sqlite_rows
from atroposlib.store.open import open_store
from atroposlib.store.protocol import GroupStore
from atroposlib.store.records import Change, Counted
from atroposlib.store.sqlite import SqliteStore
from tests.store.support import asks, env_registration, group, leased, names, put, refused, registration


async def opened(path: Path, durability: sqlite_file.Durability = "normal") -> SqliteStore:
    return await SqliteStore.open(path, 1000, 1 << 30, durability)


async def restarted(store: SqliteStore, path: Path) -> SqliteStore:
    await store.close()
    return await opened(path)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    """What another connection reads from the file."""
    db = sqlite3.connect(path)
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


@pytest.mark.parametrize("durability", ["normal", "full"])
async def test_a_restarted_store_goes_on_where_it_was(
    tmp_path: Path, durability: sqlite_file.Durability
) -> None:
    store = await opened(tmp_path / "q", durability)
    await store.register_trainer("t", registration(starting_step=3), None, 1.0)
    await store.register_env(env_registration(identity="me"), 1.0, 60.0)
    await store.start("t", 2.0)
    await put(store, *"abcdef", now=2.0)
    acked, lease = await leased(store, now=3.0), await leased(store, now=3.0)
    await store.ack(acked.batch_id, 1, 4.0)
    await store.see_env(0, 9.0)
    before = await store.run(), await store.stats()
    store = await restarted(store, tmp_path / "q")
    assert (await store.run(), await store.stats()) == before
    assert await store.ack(lease.batch_id, 1, 5.0) == 5
    assert await store.commit("t", lease.batch_id, 5.0) == 2
    assert await store.payload("e") == b"{}"
    await store.close()


async def test_settled_ids_and_batches_survive_a_restart(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    await put(store, "a", "b")
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 0.0, commit=True)
    store = await restarted(store, tmp_path / "q")
    assert not (await store.put([group("a")], 0.0))[0].new
    assert await store.ack(lease.batch_id, 1, 0.0) == 1
    await store.close()


async def test_the_oldest_settled_batch_is_forgotten_first_after_a_restart_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "REMEMBERED_BATCHES", 2)
    store = await opened(tmp_path / "q")
    await put(store, *"abcdef")
    batches = [(await leased(store)).batch_id for _ in range(3)]
    for number, batch_id in enumerate(batches):
        await store.ack(batch_id, 1, 0.0, commit=True)
        if number == 1:
            store = await restarted(store, tmp_path / "q")
    assert await refused(store.ack(batches[0], 1, 0.0)) == "api.unknown_batch"
    assert await store.ack(batches[1], 1, 0.0) == 3
    await store.close()


async def test_a_body_is_known_again_after_a_restart_though_it_was_answered_or_settled(
    tmp_path: Path,
) -> None:
    store = await opened(tmp_path / "q")
    await store.put([group("a", 8, digest="body")], 100.0)
    await store.answered(["body"])
    lease = await leased(store)
    await store.ack(lease.batch_id, 1, 101.0, commit=True)
    store = await restarted(store, tmp_path / "q")
    (answer,) = await store.put([group("b", digest="body")], 159.0)
    assert (answer.group_id, answer.new) == ("a", False)
    await store.close()


async def test_calls_are_saved_by_a_sweep(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    await store.register_env(env_registration(), 1.0, 60.0)
    await store.leave_env(0)
    await store.see_env(0, 5.0)
    await store.sweep(5.0)
    ((facts,),) = rows(tmp_path / "q", "SELECT facts FROM envs")
    assert '"last_seen":5.0' in str(facts)
    assert '"left":false' in str(facts)
    await store.close()


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    assert await refused(opened(tmp_path / "q")) == "usage.store_in_use"
    store = await restarted(store, tmp_path / "q")
    await store.close()


async def test_a_second_name_of_the_file_is_the_same_store(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    (tmp_path / "link").symlink_to(tmp_path / "q")
    assert await refused(opened(tmp_path / "link")) == "usage.store_in_use"
    await store.close()


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def files(folder: Path, kind: str) -> set[str]:
    return {path.name for path in folder.glob(kind)}


def not_a_store(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE other (value)")
    db.close()


def of_another_version(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 999")
    db.close()


def damaged_rows(path: Path) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE groups SET facts = '{}'")
    db.close()


def damaged_pages(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(sqlite_file.PAGE_BYTES)
        file.write(os.urandom(path.stat().st_size - sqlite_file.PAGE_BYTES))


DAMAGES = {
    "text": lambda path: path.write_text("hello " * 1000),
    "cut": lambda path: os.truncate(path, sqlite_file.PAGE_BYTES),
    "other version": of_another_version,
    "rows": damaged_rows,
    "pages": damaged_pages,
}


@pytest.mark.parametrize("damage", sorted(DAMAGES))
async def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "q"
    store = await opened(path)
    await put(store, "a")
    await store.close()
    DAMAGES[damage](path)
    found = path.read_bytes()
    for _ in range(2):
        with pytest.raises(UsageError) as caught:
            await opened(path)
        assert caught.value.code == "usage.store"
    assert caught.value.where == str(path)
    assert path.read_bytes() == found


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    not_a_store(tmp_path / "q")
    assert await refused(opened(tmp_path / "q")) == "usage.store"


async def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    assert await refused(opened(tmp_path / "missing" / "q")) == "usage.store"
    (tmp_path / "folder").mkdir()
    assert await refused(opened(tmp_path / "folder")) == "usage.store"


async def test_a_full_disk_refuses_a_post_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(tmp_path / "q")
    await put(store, "a")
    before = await store.stats()
    (pages,) = store._file._writer.execute("PRAGMA page_count").fetchone()
    store._file._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    large = group("large", payload=os.urandom(1 << 20))
    assert await refused(store.put([group("b"), large], 0.0)) == "store.failed"
    assert "the store failed" in caplog.text
    assert await store.stats() == before
    await put(store, "b")
    copy = tmp_path / "copy"
    for end in ("", "-wal"):
        shutil.copy(f"{tmp_path / 'q'}{end}", f"{copy}{end}")
    again = await opened(copy)
    assert await again.stats() == await store.stats()
    await again.close()
    await store.close()


async def test_what_fails_in_the_middle_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path / "q")
    write = sqlite_rows.write

    def failing(db: sqlite3.Connection, change: Change) -> None:
        if isinstance(change, Counted):
            raise sqlite3.OperationalError("disk I/O error")
        write(db, change)

    monkeypatch.setattr(sqlite_rows, "write", failing)
    assert await refused(store.put([group("a")], 0.0)) == "store.failed"
    monkeypatch.undo()
    assert rows(tmp_path / "q", "SELECT * FROM groups") == []
    assert (await store.put([group("a")], 0.0))[0].new
    await store.close()


async def test_a_failing_disk_leaves_file_and_ledger_agreeing(tmp_path: Path) -> None:
    path = tmp_path / "q"
    store = await opened(path)
    await put(store, "a", "b")
    other = sqlite3.connect(path, isolation_level=None)
    store._file._writer.execute("PRAGMA busy_timeout = 0")
    other.execute("BEGIN IMMEDIATE")
    for call in (store.put([group("c")], 0.0), store.lease(asks(), 0.0), store.sweep(0.0), store.reset()):
        assert await refused(call) == "store.failed"
    other.execute("ROLLBACK")
    other.close()
    assert (await store.stats()).queued == 2
    store = await restarted(store, path)
    assert names(await store.lease(asks(), 0.0)) == ["a", "b"]
    await store.close()


async def test_a_cancelled_post_is_stored_or_not_and_known(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    for steps in range(10):
        posting = asyncio.create_task(store.put([group(f"g{steps}")], 0.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        posting.cancel()
        await asyncio.wait([posting])
    before = await store.stats()
    store = await restarted(store, tmp_path / "q")
    after = await store.stats()
    assert after.queued == after.received >= before.received
    await store.close()


async def test_closing_finishes_what_is_under_way(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    posts = [asyncio.create_task(store.put([group(f"g{number}")], 0.0)) for number in range(5)]
    await asyncio.sleep(0)
    store = await restarted(store, tmp_path / "q")
    assert [(await post)[0].new for post in posts] == [True] * 5
    assert (await store.stats()).queued == 5
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    await store.close()
    await store.close()
    assert await refused(store.put([group("a")], 0.0)) == "store.failed"


async def test_bytes_of_settled_groups_are_deleted_by_sweeps_in_bites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    monkeypatch.setattr(sqlite, "DELETING_S", 0.0)
    monkeypatch.setattr(sqlite_file, "BITE_BYTES", 250)
    store = await opened(path)
    await store.put([group(f"g{number}", payload=bytes(100)) for number in range(7)], 0.0)
    lease = await leased(store, sequences=24)
    await store.ack(lease.batch_id, 1, 0.0, commit=True)
    assert rows(path, "SELECT count(*) FROM payloads") == [(7,)]
    store = await restarted(store, path)
    left = []
    for _ in range(4):
        await store.sweep(0.0)
        left += rows(path, "SELECT count(*) FROM payloads")
    assert left == [(5,), (3,), (1,), (1,)]
    assert rows(path, "SELECT arrival FROM payloads") == [(6,)]
    assert await store.payload("g6") == bytes(100)
    await store.close()


async def test_a_reset_deletes_bytes_later_and_never_those_of_new_groups(tmp_path: Path) -> None:
    path = tmp_path / "q"
    store = await opened(path)
    await put(store, "a", "b")
    await store.reset()
    store = await restarted(store, path)
    await store.put([group("a", payload=b"new")], 0.0)
    await store.sweep(0.0)
    assert rows(path, "SELECT body FROM payloads") == [(b"new",)]
    await store.close()


async def test_the_log_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "WAL_BYTES", 1 << 20)
    path = tmp_path / "q"
    store = await opened(path)
    log = tmp_path / "q-wal"
    sizes = []
    for number in range(12):
        await store.put([group(f"g{number}", payload=os.urandom(400_000))], 0.0)
        await store.sweep(0.0)
        sizes.append(size(log))
    assert max(sizes) < 3 << 20
    assert size(path) > 4 << 20
    await store.close()
    assert size(log) == 0


async def test_urls_name_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    limits = {"max_groups": 10, "max_bytes": 100}
    stores: list[GroupStore] = [await open_store("memory", **limits)]
    stores.append(await open_store("sqlite:///relative.sqlite3", **limits))
    stores.append(await open_store(f"sqlite:///{tmp_path}/absolute.sqlite3", **limits))
    for store in stores:
        await put(store, "a")
        await store.close()
    assert files(tmp_path, "*.sqlite3") == {"relative.sqlite3", "absolute.sqlite3"}
    for url in ("redis://host", "sqlite://", "sqlite:///", "file"):
        assert await refused(open_store(url, **limits)) == "usage.bad_value"


async def test_a_failed_store_is_no_reason_to_refuse_questions(tmp_path: Path) -> None:
    store = await opened(tmp_path / "q")
    await put(store, "a")
    await store.close()
    with pytest.raises(ApiError):
        await store.payload("a")
    assert (await store.stats()).queued == 1

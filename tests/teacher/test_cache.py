"""ScoreCache: what is found, what is cut, what is forgotten, and that a changed teacher finds nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.errors import UsageError
from atroposlib.teacher import canary
from atroposlib.teacher.cache import ScoreCache, key_of
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.scores import cut
from atroposlib.types import TeacherScores
from tests.teacher.asked import assert_true, model, questions, teacher_over

IDS = [5, 6, 7, 8]
QUESTION = Question(np.array(IDS, dtype=np.int32), 2)


def scores(rows: int = 3, *, start: int = 1, seed: int = 0, extra: int = 0) -> TeacherScores:
    generator = np.random.default_rng(seed)
    return TeacherScores(
        ids=generator.integers(0, 1000, (rows, 3)).astype(np.int32),
        logprobs=generator.normal(size=(rows, 3)).astype(np.float32),
        start=start,
        model="m",
        tokenizer="t",
        server="vllm 0.32.0",
        extra_logprobs=generator.normal(size=(rows, extra)).astype(np.float32) if extra else None,
    )


def assert_equal(one: TeacherScores | None, other: TeacherScores) -> None:
    assert one is not None
    for field in fields(TeacherScores):
        mine, wanted = getattr(one, field.name), getattr(other, field.name)
        if isinstance(wanted, np.ndarray):
            assert mine.dtype == wanted.dtype
            assert np.array_equal(mine, wanted, equal_nan=True)
        else:
            assert mine == wanted


@asynccontextmanager
async def cache(max_bytes: int = 1 << 20, path: Path | None = None) -> AsyncIterator[ScoreCache]:
    made = ScoreCache(max_bytes, path)
    try:
        yield made
    finally:
        await made.close()


OTHERS: list[Callable[[Question], tuple[Question, str, str]]] = [
    lambda q: (replace(q, k=3), "f", "t"),
    lambda q: (replace(q, dtype="float16"), "f", "t"),
    lambda q: (replace(q, ids=q.ids[::-1]), "f", "t"),
    lambda q: (replace(q, ids=q.ids[:-1]), "f", "t"),
    lambda q: (replace(q, extra_ids=np.array([[1], [2], [3]], np.int32)), "f", "t"),
    lambda q: (q, "f2", "t"),
    lambda q: (q, "f", "t2"),
    lambda q: (q, "", "ft"),
]


@pytest.mark.parametrize("change", OTHERS)
def test_the_key_is_of_all_that_scores_depend_on(
    change: Callable[[Question], tuple[Question, str, str]],
) -> None:
    assert key_of(*change(QUESTION)) != key_of(QUESTION, "f", "t")
    assert key_of(replace(QUESTION, start=2), "f", "t") == key_of(QUESTION, "f", "t")


def test_extra_ids_of_other_shapes_are_other_keys() -> None:
    keys = {
        key_of(replace(QUESTION, extra_ids=np.zeros(shape, np.int32)), "f")
        for shape in ((3, 2), (2, 3), (6, 1))
    }
    assert len(keys) == 3


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("extra", [0, 2])
async def test_what_was_put_is_found_and_cut(tmp_path: Path, on_disk: bool, extra: int) -> None:
    path = tmp_path / "scores.sqlite3" if on_disk else None
    put = scores(extra=extra)
    async with cache(0 if on_disk else 1 << 20, path) as kept:
        await kept.put(b"key", put)
        assert_equal(await kept.get(b"key", 1), put)
        assert_equal(await kept.get(b"key", 3), cut(put, 3))
        assert await kept.get(b"other", 1) is None


async def test_scores_that_begin_too_late_are_not_found() -> None:
    async with cache() as kept:
        await kept.put(b"key", scores(start=2))
        assert await kept.get(b"key", 1) is None
        assert_equal(await kept.get(b"key", 2), scores(start=2))


async def test_rows_from_a_later_position_do_not_replace_those_from_an_earlier_one() -> None:
    async with cache() as kept:
        await kept.put(b"key", scores())
        await kept.put(b"key", scores(2, start=2))
        assert_equal(await kept.get(b"key", 1), scores())


async def test_nobody_can_write_into_what_is_kept() -> None:
    async with cache() as kept, teacher_over(cache=kept) as (teacher, _):
        for start in (1, 1, 2):
            got = await teacher.score(IDS, 2, start)
            for array in (got.ids, got.logprobs):
                assert not array.flags.writeable
        assert_true(await teacher.score(IDS, 2), IDS)


async def test_memory_is_bounded_and_forgets_the_least_recently_used() -> None:
    size = scores().ids.nbytes + scores().logprobs.nbytes
    async with cache(3 * size) as kept:
        for name in (b"a", b"b", b"c"):
            await kept.put(name, scores())
        await kept.put(b"a", scores())
        await kept.get(b"b", 1)
        await kept.put(b"d", scores())
        found = [name for name in (b"a", b"b", b"c", b"d") if await kept.get(name, 1) is not None]
        assert found == [b"a", b"b", b"d"]


async def test_a_file_outlives_its_process(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    async with cache(path=path) as kept:
        await kept.put(b"key", scores())
    async with cache(path=path) as again:
        assert_equal(await again.get(b"key", 2), cut(scores(), 2))


@pytest.mark.parametrize("change", ["frame = x'00'", "frame = substr(frame, 1, 40)", "digest = x'00'"])
async def test_a_damaged_row_is_a_miss_and_counted(tmp_path: Path, change: str) -> None:
    path = tmp_path / "scores.sqlite3"
    async with cache(path=path) as kept:
        await kept.put(b"key", scores())
        await kept.put(b"other", scores(seed=1))
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE scores SET {change} WHERE key = ?", (b"key",))
    db.close()
    async with cache(path=path) as again:
        assert await again.get(b"key", 1) is None
        assert again.unreadable == 1
        assert_equal(await again.get(b"other", 1), scores(seed=1))
        await again.put(b"key", scores())
        assert_equal(await again.get(b"key", 1), scores())


async def test_a_flipped_bit_never_becomes_a_target(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    async with cache(path=path) as kept:
        await kept.put(b"key", scores())
    with sqlite3.connect(path) as db:
        (frame,) = db.execute("SELECT frame FROM scores").fetchone()
        flipped = frame[:-3] + bytes([frame[-3] ^ 1]) + frame[-2:]
        db.execute("UPDATE scores SET frame = ?", (flipped,))
    db.close()
    async with cache(path=path) as again:
        assert await again.get(b"key", 1) is None


async def test_a_file_that_fails_costs_the_cache_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "scores.sqlite3"
    async with cache(0, path) as kept:
        with sqlite3.connect(path) as db:
            db.execute("DROP TABLE scores")
        db.close()
        await kept.put(b"key", scores())
        assert await kept.get(b"key", 1) is None
        assert kept.failures == 2
        assert caplog.text.count("the score cache's file fails") == 1


@pytest.mark.parametrize("content", [b"no database at all" * 100, None])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "scores.sqlite3"
    if content is None:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE mine (a)")
        db.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(UsageError) as caught:
        ScoreCache(1, path)
    assert caught.value.code == "usage.file"
    assert content is None or path.read_bytes() == before


def test_a_file_in_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        ScoreCache(1, tmp_path / "none" / "scores.sqlite3")


WRITER = """
import asyncio, sys
import numpy as np
from atroposlib.teacher.cache import ScoreCache
from atroposlib.types import TeacherScores

async def main(path, first):
    cache = ScoreCache(0, path)
    for number in range(first, first + 20):
        values = np.full((3, 3), -float(number), np.float32)
        await cache.put(str(number).encode(), TeacherScores(values.astype(np.int32), values, 1, "m"))
    assert await cache.generation("m", np.zeros(4, np.float32)) == 0
    assert cache.failures == 0
    await cache.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def test_several_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite3"
    writers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(path), str(first))
        for first in (0, 10, 20)
    ]
    assert [await writer.wait() for writer in writers] == [0, 0, 0]
    async with cache(path=path) as kept:
        for number in range(40):
            found = await kept.get(str(number).encode(), 1)
            assert found is not None
            assert (found.logprobs == -number).all()


@pytest.mark.parametrize("on_disk", [False, True])
async def test_a_canary_that_is_known_keeps_its_generation(tmp_path: Path, on_disk: bool) -> None:
    generator = np.random.default_rng(0)
    old, new = (generator.normal(-5, 2, 32).astype(np.float32) for _ in range(2))
    async with cache(path=tmp_path / "scores.sqlite3" if on_disk else None) as kept:
        assert await kept.generation("m", old) == 0
        assert await kept.generation("m", new) == 1
        assert await kept.generation("other", new) == 0
        assert await kept.generation("m", old + np.float32(0.01)) == 0
        assert not canary.same(old, new)


async def test_a_second_run_asks_only_for_the_canary(tmp_path: Path) -> None:
    for run in range(2):
        async with (
            cache(path=tmp_path / "scores.sqlite3") as kept,
            teacher_over(cache=kept) as (teacher, [server]),
        ):
            results = await asyncio.gather(teacher.score(IDS, 2), teacher.score(IDS[:3], 2))
            assert_true(results[0], IDS)
            assert_true(results[1], IDS[:3])
            assert_true(await teacher.score(IDS, 2, 3), IDS, start=3)
            assert len(questions(server)) == (2 if run == 0 else 0)
            assert teacher.stats.cache_hits == (1 if run == 0 else 3)
            assert teacher.stats.scored == 3


async def test_a_teacher_that_was_changed_between_runs_finds_nothing_of_the_old_one(tmp_path: Path) -> None:
    for seed in (0, 1, 0):
        async with (
            cache(path=tmp_path / "scores.sqlite3") as kept,
            teacher_over(cache=kept) as (teacher, [server]),
        ):
            server.answer = model(seed)
            assert_true(await teacher.score(IDS, 2), IDS, seed=seed)
            last: Any = questions(server)
    # The first model is known: its rows are its own.
    assert last == []


async def test_hits_go_on_while_no_server_answers() -> None:
    async with cache() as kept, teacher_over(cache=kept) as (teacher, [server]):
        await teacher.score(IDS, 2)
        server.answer = lambda _: (_ for _ in ()).throw(AssertionError)
        assert_true(await teacher.score(IDS, 2), IDS)
        assert teacher.stats.cache_hits == 1

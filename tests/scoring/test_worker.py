"""Shards are written in order, shared by workers, and gone on with after a kill -9; every row is counted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atroposlib.errors import TeacherError, TeacherUnreachable, UsageError
from atroposlib.scoring import worker
from atroposlib.scoring.chat import Chat
from atroposlib.scoring.plan import open_plan
from atroposlib.scoring.source import open_source
from atroposlib.scoring.summary import FILE, summarise, told
from atroposlib.wire.shards import finished_shards, read_shard
from tests.scoring.support import (
    TOP_K,
    TellingScorer,
    check_told,
    job_of,
    numbers,
    panel_of,
    stored,
    token_rows,
    work,
    write_rows,
)
from tests.support.processes import until

ROOT = Path(__file__).parents[2]


def summary_of(directory: Path, path: Path, rows_per_shard: int = 4) -> dict[str, Any]:
    plan = open_plan(directory, open_source(path), path, rows_per_shard, {"k": TOP_K})
    return summarise(directory, plan)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "shards").iterdir()}


async def test_rows_keep_their_order_whatever_order_they_are_answered_in(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", token_rows(11))
    last = asyncio.Event()

    async def before(ids: Sequence[int]) -> None:
        if ids[1] == 10:
            last.set()
        await last.wait()

    job = job_of(tmp_path / "out", path, panel_of({"teacher": TellingScorer(before)}), tokens_ahead=1000)
    told_rows = await work(job)
    groups = stored(tmp_path / "out")
    assert numbers(groups) == list(range(11))
    for group in groups:
        check_told(group)
    assert told_rows[-1] == 11
    assert told_rows == sorted(told_rows)


async def test_no_more_rows_are_read_than_the_window_takes(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", token_rows(100))
    scorer = TellingScorer()
    most = 0

    async def before(ids: Sequence[int]) -> None:
        nonlocal most
        most = max(most, len(scorer.asked) - (await asyncio.to_thread(finished_rows)))

    def finished_rows() -> int:
        return 4 * len(finished_shards(tmp_path / "out"))

    scorer._before = before
    await work(job_of(tmp_path / "out", path, panel_of({"teacher": scorer}), tokens_ahead=60))
    assert len(scorer.asked) == 100
    # 60 tokens are ten rows; one more is begun before there is room, and the shard of the oldest is open.
    assert most <= 10 + 1 + 4


async def test_every_row_is_counted_once(tmp_path: Path, tokenizer: Any) -> None:
    async def before(ids: Sequence[int]) -> None:
        if ids[1] == 2:
            raise TeacherError("no", code="teacher.refused")

    rows = [
        *token_rows(3),
        {"tokens": [1, 2], "masks": [0, 1]},
        "no json",
        {"tokens": [1, 2], "masks": [-100, -100]},
        {"messages": [{"role": "user", "content": "q"}]},
        {"prompt": "q", "completion": "a"},
    ]
    path, out = write_rows(tmp_path / "data.jsonl", rows), tmp_path / "out"
    panel = panel_of({"teacher": TellingScorer(before)})
    await work(job_of(out, path, panel, rows_per_shard=3, chat=Chat(tokenizer)))
    summary = summary_of(out, path, 3)
    assert summary == json.loads((out / FILE).read_text())
    assert summary["complete"]
    assert (summary["input_rows"], summary["rows"], summary["scored"]) == (8, 8, 3)
    assert summary["masked"] == {"teacher_refused": 1, "untrained": 1}
    assert summary["refused"] == {"masks": 1, "json": 1, "no_reply": 1}
    assert [(one["row"], one["reason"]) for one in summary["refusals"]] == [
        (3, "masks"),
        (4, "json"),
        (6, "no_reply"),
    ]
    assert summary["teachers"]["teacher"]["masked"] == summary["masked"]
    assert (summary["sequences"], summary["teachers"]["teacher"]["scored"]) == (5, 3)
    assert summary["bytes"] == sum(
        place.length for number in range(3) for place in read_shard(out, number).frames
    )
    assert numbers(stored(out)) == [0, 1, 7]
    assert told(summary) == (
        "8 of 8 rows: 3 scored, 2 (teacher_refused 1, untrained 1) masked, "
        f"3 (json 1, masks 1, no_reply 1) refused; {summary['bytes'] / 1e6:.1f} MB"
    )


async def test_a_file_without_rows_is_a_finished_job(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", [])
    assert await work(job_of(tmp_path / "out", path, panel_of({"teacher": TellingScorer()}))) == [0]
    assert summary_of(tmp_path / "out", path)["complete"]


@contextmanager
def victim(directory: Path, path: Path, hang_at: int) -> Iterator[subprocess.Popen[str]]:
    """A worker that hangs at a row; killed at the end of the block."""
    command = [sys.executable, "-m", "tests.scoring.victim", str(directory), str(path), str(hang_at)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "hanging\n"
            yield process
        finally:
            process.kill()


async def test_after_a_kill_the_job_goes_on_and_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", token_rows(23))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    await work(job_of(whole, path, panel_of({"teacher": TellingScorer()})))
    for hang_at in (6, 13, 22):
        with victim(killed, path, hang_at):
            pass
        # Rows before the one that it hung at are in finished shards, and nothing else is.
        assert sorted(finished_shards(killed)) == list(range(hang_at // 4))
        assert not summary_of(killed, path)["complete"]
    scorer = TellingScorer()
    await work(job_of(killed, path, panel_of({"teacher": scorer})))
    assert sorted(ids[1] for ids, _, _ in scorer.asked) == [20, 21, 22]
    assert contents(killed) == contents(whole)


async def test_a_worker_takes_over_what_a_killed_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LOOK_AGAIN_S", 0.01)
    path, out = write_rows(tmp_path / "data.jsonl", token_rows(20)), tmp_path / "out"
    scorer = TellingScorer()
    with victim(out, path, 1) as process:
        working = asyncio.create_task(work(job_of(out, path, panel_of({"teacher": scorer}))))
        async with asyncio.timeout(20):
            await until(lambda: len(finished_shards(out)) == 4)
            # The first shard is the other's as long as it lives.
            assert sorted(finished_shards(out)) == [1, 2, 3, 4]
            assert min(ids[1] for ids, _, _ in scorer.asked) == 4
            process.kill()
            await working
    assert numbers(stored(out)) == list(range(20))
    assert len(scorer.asked) == 20


async def test_workers_share_a_job_and_do_every_row_once(tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "data.jsonl", token_rows(60)), tmp_path / "out"
    command = [sys.executable, "-m", "tests.scoring.victim", str(out), str(path), "-1"]
    started = [await asyncio.create_subprocess_exec(*command, cwd=ROOT) for _ in range(3)]
    assert [await process.wait() for process in started] == [0, 0, 0]
    assert numbers(stored(out)) == list(range(60))
    assert summary_of(out, path)["scored"] == 60


async def test_an_outage_ends_the_job_and_what_is_finished_stays(tmp_path: Path) -> None:
    async def before(ids: Sequence[int]) -> None:
        if ids[1] == 9:
            raise TeacherUnreachable("away")

    path, out = write_rows(tmp_path / "data.jsonl", token_rows(20)), tmp_path / "out"
    with pytest.raises(ExceptionGroup) as caught:
        await work(job_of(out, path, panel_of({"teacher": TellingScorer(before)}), tokens_ahead=1))
    assert caught.value.subgroup(TeacherUnreachable) is not None
    assert sorted(finished_shards(out)) == [0, 1]
    assert sorted(contents(out)) == ["00000000.frames", "00000000.json", "00000001.frames", "00000001.json"]
    await work(job_of(out, path, panel_of({"teacher": TellingScorer()})))
    assert numbers(stored(out)) == list(range(20))


async def refuse_all_but_five(ids: Sequence[int]) -> None:
    """Fail on every row but number 5."""
    if ids[1] != 5:
        raise TeacherError("no", code="teacher.refused", where="http://teacher")


async def test_failures_on_row_after_row_end_the_job(tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "data.jsonl", token_rows(20)), tmp_path / "out"
    panel = panel_of({"teacher": TellingScorer(refuse_all_but_five)})
    with pytest.raises(ExceptionGroup) as caught:
        await work(job_of(out, path, panel, stop_after_failures=6))
    (error,) = caught.value.exceptions
    assert isinstance(error, TeacherError)
    assert error.code == "teacher.refused"
    # Rows 0 .. 4 are five, and row 5 breaks the row of failures.
    assert error.where == "up to row 12 of the input"
    assert "http://teacher" in str(error)


async def test_failures_are_masked_when_they_are_to_end_nothing(tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "data.jsonl", token_rows(20)), tmp_path / "out"
    panel = panel_of({"teacher": TellingScorer(refuse_all_but_five)})
    await work(job_of(out, path, panel, stop_after_failures=None))
    summary = summary_of(out, path)
    assert (summary["scored"], summary["masked"]) == (1, {"teacher_refused": 19})


async def test_text_without_a_tokenizer_ends_the_job(tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "data.jsonl", [{"prompt": "q", "completion": "a"}]), tmp_path / "out"
    with pytest.raises(ExceptionGroup) as caught:
        await work(job_of(out, path, panel_of({"teacher": TellingScorer()})))
    assert caught.value.subgroup(UsageError) is not None


def test_a_job_is_gone_on_with_as_it_was_begun(tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "data.jsonl", token_rows(9)), tmp_path / "out"
    rows = open_source(path)
    plan = open_plan(out, rows, path, 4, {"top_k": 2, "dtype": "float16"})
    assert open_plan(out, rows, path, 4, {"top_k": 2, "dtype": "float16"}) == plan
    with pytest.raises(UsageError, match=r"job.json top_k: .*got 3, expected 2"):
        open_plan(out, rows, path, 4, {"top_k": 3, "dtype": "float16"})
    with pytest.raises(UsageError, match=r"job.json rows_per_shard"):
        open_plan(out, rows, path, 5, {"top_k": 2, "dtype": "float16"})
    write_rows(path, token_rows(10))
    with pytest.raises(UsageError, match=r"job.json input"):
        open_plan(out, rows, path, 4, {"top_k": 2, "dtype": "float16"})

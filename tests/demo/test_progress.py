"""Progress is read from growing journals, half lines included, and told on a terminal or in a log."""

from __future__ import annotations

import io
import json
import time
from itertools import chain
from pathlib import Path

import pytest
from rich.console import Console

from atroposlib.demo.files import RunFiles
from atroposlib.demo.live import View, panel, sparkline
from atroposlib.demo.progress import Follower, JournalTail, Progress, Rate
from tests.demo.journals import evaluation, refresh, rollout, step, teacher, two_steps


def rendered(progress: Progress, now: float) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(panel(progress, "title", now))
    out = console.file
    assert isinstance(out, io.StringIO)
    return out.getvalue()


def test_a_tail_gives_every_whole_line_once(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    tail = JournalTail(file)
    assert tail.read() == []
    with file.open("wb") as out:
        out.write(b'{"kind": "a"}\n{"kind": "b')
        out.flush()
        assert [event["kind"] for event in tail.read()] == ["a"]
        assert tail.read() == []
        out.write('é"}\n'.encode())
        out.flush()
        assert [event["kind"] for event in tail.read()] == ["bé"]


def test_events_become_state() -> None:
    progress = Progress(steps=2)
    for event in chain(*two_steps().values()):
        progress.take(event)
    assert progress.done == 2
    assert progress.losses == [4.0, 2.0]
    assert progress.kl == {0: 8.0, 2: 3.0}
    assert progress.policy_version == 2


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (step(1, 0, 2), ["step 1/12", "loss 4.000", "100 tokens", "2.0 s"]),
        (refresh(3, 9), ["weights of step 3"]),
        (refresh(3, 9, confirmed=False), ["not confirmed"]),
        (evaluation(4, 3.5, 9), ["3.500", "step 4"]),
        ({"kind": "group_dropped", "time": 1, "reason": "too_long", "sequences": 4}, ["too_long"]),
        ({**teacher(0, 1), "failed": 2}, ["2 sequences", "masked"]),
    ],
)
def test_what_matters_is_a_line(event: dict[str, object], words: list[str]) -> None:
    line = Progress(steps=12).take(event)
    assert line is not None
    for word in words:
        assert word in line


def test_what_happens_all_the_time_is_no_line() -> None:
    for event in (rollout(0, 1), teacher(0, 1), {"kind": "phase", "time": 1, "start": 0, "name": "x"}):
        assert Progress(steps=1).take(event) is None


def test_a_rate_forgets() -> None:
    rate = Rate()
    rate.add(100.0, 600)
    assert rate.value(101.0) == pytest.approx(20.0)
    assert rate.value(200.0) == 0.0


def test_a_follower_takes_all_parts_in_time_order(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.journal("trainer").parent.mkdir()
    for part, events in two_steps().items():
        files.journal(part).write_text("".join(json.dumps(event) + "\n" for event in events))
    progress = Progress(steps=2)
    lines = Follower(files, progress).update()
    assert [line.split(":")[0] for line in lines] == [
        "evaluator",
        "trainer",
        "student",
        "trainer",
        "student",
        "evaluator",
    ]


def test_the_table_shows_every_part() -> None:
    progress = Progress(steps=2, started=0.0)
    progress.parts = {"teacher": "is ready"}
    text = rendered(progress, 65.0)
    for word in ("teacher", "is ready", "student", "environment", "api", "trainer", "evaluator", "1:05"):
        assert word in text
    for event in chain(*two_steps().values()):
        progress.take(event)
    progress.groups_sent, progress.queue = 3, 4
    text = rendered(progress, 40.0)
    for word in ("step 2 of 2", "loss 2.00", "8.00 → 3.00", "4 sequences queued", "3 groups sent", "tok/s"):
        assert word in text


def test_without_a_terminal_there_are_lines() -> None:
    out = io.StringIO()
    with View(Console(file=out, width=80), Progress(steps=1, started=time.time()), "title") as view:
        view.update(["trainer: " + "x" * 100, "[bold]not markup[/bold]"])
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1].endswith("[bold]not markup[/bold]")


def test_on_a_terminal_there_is_a_table() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with View(console, Progress(steps=1), "the title") as view:
        view.update(["a line"])
    assert "the title" in out.getvalue()
    assert "a line" not in out.getvalue()


def test_a_sparkline_falls_with_its_values() -> None:
    line = sparkline([8.0, 4.0, 1.0, 0.0])
    assert sorted(line, reverse=True) == list(line)
    assert len(sparkline([1.0] * 100)) == 24
    assert sparkline([0.0]) == "▁"

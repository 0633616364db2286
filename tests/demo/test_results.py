"""What a run leaves behind: merged metrics, a summary of its own figures, one checkpoint, a closing table."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from atroposlib.demo.plan import Plan
from atroposlib.demo.results import keep_newest_checkpoint, print_summary, write_results
from atroposlib.journal import Journal
from tests.demo.journals import status, two_steps
from tests.demo.plans import make_plan

FACTS = {"outcome": "finished", "error": None, "seconds": 40.0}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    plan = make_plan(tmp_path / "run")
    plan.files.config.write_text("demo: {}\n")
    for part, events in two_steps().items():
        plan.files.journal(part).write_text("".join(json.dumps(event) + "\n" for event in events))
    return plan


def test_metrics_are_all_events_in_time_order_with_their_part(plan: Plan) -> None:
    write_results(plan, None, FACTS)
    events = [json.loads(line) for line in plan.files.metrics.read_text().splitlines()]
    assert len(events) == sum(map(len, two_steps().values()))
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)
    assert {event["part"] for event in events if event["kind"] == "step"} == {"trainer"}


def test_summary_and_report_are_of_this_run(plan: Plan) -> None:
    returned = write_results(plan, status(received=6, trained=4, queued=2), FACTS)
    assert json.loads(plan.files.summary.read_text()) == returned
    assert (returned["teacher"], returned["steps"], returned["kl_end"]) == ("Big", 2, 3.0)
    assert "Big teaches Small" in plan.files.report.read_text()


def test_a_half_written_line_does_not_stop_the_results(plan: Plan) -> None:
    with plan.files.journal("trainer").open("a") as journal:
        journal.write('{"kind": "st')
    assert write_results(plan, None, FACTS)["steps"] == 2


def test_the_newest_whole_checkpoint_is_kept(plan: Plan) -> None:
    for name in ("step-9", "step-10", "step-11"):
        (plan.files.checkpoints / name).mkdir(parents=True)
    trainer = Journal(plan.files.journal("trainer"))
    for step in (9, 10):
        trainer.write("checkpoint", step=step, path=str(plan.files.checkpoints / f"step-{step}"))
    # The trainer was stopped while it wrote step-11: that one is not in its journal.
    assert keep_newest_checkpoint(plan.files) == plan.files.checkpoints / "step-10"
    assert [directory.name for directory in plan.files.checkpoints.iterdir()] == ["step-10"]


def test_a_run_without_a_checkpoint_keeps_what_there_is(plan: Plan) -> None:
    assert keep_newest_checkpoint(plan.files) is None


def test_the_closing_table_says_how_it_went_and_where_things_are(plan: Plan) -> None:
    out = io.StringIO()
    summary = write_results(plan, status(received=6, trained=4, queued=2), FACTS)
    print_summary(Console(file=out, width=120), summary, plan.files, Path("/runs/step-2"))
    text = out.getvalue()
    for part in ("8.00 → 3.00", "38% of the start", "6 received", str(plan.files.report), "/runs/step-2"):
        assert part in text


def test_the_closing_table_of_a_run_cut_short_has_dashes(plan: Plan) -> None:
    for part in two_steps():
        plan.files.journal(part).write_text("")
    out = io.StringIO()
    print_summary(Console(file=out, width=120), write_results(plan, None, FACTS), plan.files, None)
    assert "- → - nats/token" in out.getvalue()
    assert "None" not in out.getvalue()

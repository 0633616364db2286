"""Writes what a run leaves behind: its metrics, summary and report, and the table on the terminal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from atroposlib.demo.evaluate import latest_checkpoint
from atroposlib.demo.files import JOURNALS, RunFiles
from atroposlib.demo.plan import TRAINER, Plan
from atroposlib.demo.summary import summarize
from atroposlib.journal import read_journal
from atroposlib.report.page import write_report

Event = dict[str, Any]


def write_results(plan: Plan, status: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write the three files of a run, whole or cut short; returns the summary.

    Args:
        plan: The run's plan.
        status: Last answer of the API's GET /v1/status, or None.
        facts: Members of the summary that the journals do not tell.
    """
    parts = {part: read_journal(plan.files.journal(part)) for part in JOURNALS}
    write_metrics(plan.files, parts)
    summary = summarize(parts, status, {**_origin(plan), **facts})
    text = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False)
    plan.files.summary.write_text(text + "\n", encoding="utf-8")
    write_report(plan.files.report, summary, parts, plan.files.config.read_text(encoding="utf-8"))
    return summary


def write_metrics(files: RunFiles, parts: Mapping[str, Sequence[Event]]) -> None:
    """Merge the journals into one file in time order, each event with its part."""
    events = [{**event, "part": part} for part, journal in parts.items() for event in journal]
    events.sort(key=lambda event: event["time"])
    with files.metrics.open("w", encoding="utf-8") as out:
        for event in events:
            out.write(json.dumps(event, ensure_ascii=False) + "\n")


def keep_newest_checkpoint(files: RunFiles) -> Path | None:
    """Delete all checkpoints but the newest; returns it, or None when there is none.

    Call it once no part runs any more: the evaluator and the student's server read the older ones.
    """
    newest = latest_checkpoint(read_journal(files.journal(TRAINER)))
    if newest is None:
        return None
    for directory in files.checkpoints.iterdir():
        if directory != newest[1]:
            shutil.rmtree(directory)
    return newest[1]


def print_summary(
    console: Console, summary: Mapping[str, Any], files: RunFiles, trained: Path | None
) -> None:
    """The figures that matter, and where the rest and the trained student are."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in headline(summary):
        table.add_row(name, value)
    console.print()
    console.print(table)
    places = [("results", files.root), ("report", files.report)]
    if trained is not None:
        places.append(("model", trained))
    for name, file in places:
        console.print(f"{name:<10}{file}", markup=False, highlight=False, soft_wrap=True)


def headline(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each line of the closing table."""
    kl_start, kl_end = summary["kl_start"], summary["kl_end"]
    unit = summary["unit"]
    kl = f"{_number(kl_start)} → {_number(kl_end)} nats/{unit}"
    if kl_start and kl_end is not None:
        kl += f" ({kl_end / kl_start:.0%} of the start, over {summary['kl_over']} {unit}s)"
    places = ("received", "trained", "leased", "queued")
    groups = [f"{_number(summary[f'groups_{place}'], 0)} {place}" for place in places]
    return [
        ("student", summary["student_origin"]),
        ("held-out KL", kl),
        *_across(summary),
        ("training", f"{summary['steps']} steps, {summary['tokens_trained']} tokens"),
        ("teacher targets", f"on {_percent(summary['teacher_token_frac'])} of the trained tokens"),
        ("captured mass", f"{_percent(summary['captured_mass'])} of the teacher's probability was sent"),
        ("overlap", f"{_percent(summary['overlap_share'])} of step time had rollouts or scoring beside it"),
        ("refreshes", f"{summary['refreshes_confirmed']} confirmed by the student's server"),
        ("groups", ", ".join(groups)),
        ("time", f"{summary['seconds']:.0f} s"),
    ]


def _across(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of a run with two tokenizers."""
    if "bits_per_byte_start" not in summary:
        return []
    start, end, teacher = (summary[f"bits_per_byte_{name}"] for name in ("start", "end", "teacher"))
    return [
        (
            "bits per byte",
            f"{_number(start, 3)} → {_number(end, 3)} (the teacher itself {_number(teacher, 3)})",
        ),
        ("chunk coverage", f"{_percent(summary['held_out_chunk_coverage'])} of the held-out tokens"),
    ]


def _origin(plan: Plan) -> dict[str, Any]:
    return {
        "teacher": plan.models.teacher_title,
        "student": plan.models.student_title,
        "student_origin": plan.models.student_origin,
        "same_tokenizer": plan.models.same_tokenizer,
        "teacher_is_base": plan.models.teacher_is_base,
        "unit": plan.unit,
        "backend": plan.settings.backend,
        "steps_planned": plan.settings.steps,
    }


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"

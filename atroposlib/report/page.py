"""Makes report.html of a run: one file with its pictures and styles inside, nothing fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from atroposlib.report.svg import Lane, line_chart, timeline

Event = Mapping[str, Any]
Parts = Mapping[str, Sequence[Event]]

LANES = (
    ("rollouts", "environment", "rollout", "rollout"),
    ("teacher scoring", "environment", "teacher", "teacher"),
    ("trainer steps", "trainer", "step", "step"),
    ("weight refresh", "trainer", "refresh", "refresh"),
    ("evaluation", "evaluator", "eval", "eval"),
)
"""Name of each lane of the timeline, the part and kind of its events, and its colour class."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A held-out prompt and what each model makes of it, greedily; None where there is no text."""

    prompt: str
    teacher: str | None
    before: str | None
    after: str | None


def write_report(file: Path, summary: Mapping[str, Any], parts: Parts, config: str) -> None:
    """Write the report of a run.

    Args:
        file: The HTML file.
        summary: The members of summary.json.
        parts: The events of each part.
        config: Text of the run's config.yaml.
    """
    file.write_text(render(summary, parts, config), encoding="utf-8")


def render(summary: Mapping[str, Any], parts: Parts, config: str) -> str:
    """The report as HTML text; everything that comes from the run is escaped."""
    templates = Environment(
        loader=PackageLoader("atroposlib.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(number=number, percent=percent)
    return templates.get_template("report.html.j2").render(
        run=summary,
        config=config,
        samples=samples(parts.get("evaluator", ())),
        phases=[event for event in parts.get("demo", ()) if event["kind"] == "phase"],
        kl_chart=_kl_chart(summary),
        bits_chart=_bits_chart(summary),
        loss_chart=_loss_chart(parts.get("trainer", ()), f"nats per {summary['unit']}"),
        timeline=_timeline(parts),
    )


def samples(evaluator: Sequence[Event]) -> list[Sample]:
    """The held-out prompts with the texts of the teacher, the first and the last student."""
    events = [event for event in evaluator if event["kind"] == "sample"]
    shown = []
    for index in sorted({event["index"] for event in events}):
        of_prompt = [event for event in events if event["index"] == index]
        texts = {(event["role"], event["step"]): event["text"] for event in of_prompt}
        last = max((step for role, step in texts if role == "student"), default=0)
        after = texts.get(("student", last)) if last > 0 else None
        prompt = "\n".join(message["content"] for message in of_prompt[0]["messages"])
        shown.append(
            Sample(
                prompt, _shown(texts.get(("teacher", 0))), _shown(texts.get(("student", 0))), _shown(after)
            )
        )
    return shown


def number(value: float | None, digits: int = 2) -> str:
    """A figure for people; a dash for what was not measured."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share for people; a dash for what was not measured."""
    return "–" if value is None else f"{value:.1%}"


def _kl_chart(summary: Mapping[str, Any]) -> Markup | None:
    title = "Held-out KL between teacher and student over optimizer steps"
    return _by_step(summary["kl_by_step"], title, f"nats per {summary['unit']}")


def _bits_chart(summary: Mapping[str, Any]) -> Markup | None:
    title = "Bits per byte of the student on the teacher's held-out texts over optimizer steps"
    return _by_step(summary.get("bits_per_byte_by_step", ()), title, "bits per byte")


def _by_step(values: Sequence[Sequence[float]], title: str, y_label: str) -> Markup | None:
    """A figure of the evaluator over the steps that it was measured at; None where it never was."""
    points = [(float(step), float(value)) for step, value in values]
    if not points:
        return None
    return _markup(line_chart(points, title=title, x_label="optimizer steps", y_label=y_label, values=True))


def _loss_chart(trainer: Sequence[Event], y_label: str) -> Markup | None:
    points = [(float(event["step"]), float(event["loss"])) for event in trainer if event["kind"] == "step"]
    if not points:
        return None
    title = "Training loss over optimizer steps"
    return _markup(line_chart(points, title=title, x_label="optimizer step", y_label=y_label, values=False))


def _timeline(parts: Parts) -> Markup | None:
    spans = {
        name: [
            (float(event["start"]), float(event["time"]))
            for event in parts.get(part, ())
            if event["kind"] == kind
        ]
        for name, part, kind, _ in LANES
    }
    every = [span for lane in spans.values() for span in lane]
    if not every:
        return None
    zero, end = min(start for start, _ in every), max(end for _, end in every)
    lanes = [
        Lane(name, css_class, [(start - zero, stop - zero) for start, stop in spans[name]])
        for name, _, _, css_class in LANES
    ]
    return _markup(timeline(lanes, end - zero, title="What each part did over the run"))


def _shown(text: str | None) -> str | None:
    """A text without the runs of empty lines that an untrained model likes."""
    return None if text is None else re.sub(r"\n\s*\n\s*", "\n\n", text).strip()


def _markup(svg: str) -> Markup:
    # The pictures escape their own texts, so the template must not do it again.
    return Markup(svg)  # noqa: S704

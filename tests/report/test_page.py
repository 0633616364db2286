"""The report: one well-formed file that needs nothing beside it, and says what the summary says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from atroposlib.demo.summary import summarize
from atroposlib.report.page import render, samples, write_report
from tests.demo.journals import sample, status, two_steps, two_vocabularies

VOID = {"meta", "br", "link", "img", "input", "hr"}
FACTS = {
    "teacher": "Big",
    "student": "Small",
    "student_origin": "a pruned copy of the teacher (20 of 30 layers)",
    "same_tokenizer": True,
    "teacher_is_base": False,
    "unit": "token",
    "backend": "embedded",
    "outcome": "finished",
    "error": None,
    "seconds": 40.0,
}


class Checker(HTMLParser):
    """Collects what a page asks for from elsewhere, and whether its tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.outside += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "srcset", "data"}]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(parts: dict[str, Any], api: dict[str, Any] | None, **facts: Any) -> str:
    return render(summarize(parts, api, {**FACTS, **facts}), parts, "demo:\n  steps: 2\n")


def checked(html: str) -> str:
    """The page's text, after its tags were found to match and to ask for nothing."""
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert checker.outside == []
    assert not re.search(r"@import|url\(|<script|http-equiv", html)
    return re.sub(r"\s+", " ", " ".join(checker.text))


def test_it_is_well_formed_and_self_contained() -> None:
    text = checked(page(two_steps(), status(received=7, trained=5, queued=2)))
    for part in ("Big teaches Small", "8.00 to 3.00", "37.5%", "20 of 30 layers", "Received = trained"):
        assert part in re.sub(r"\s+([.)])", r"\1", text)
    assert "Paris!" in text
    assert "steps: 2" in text


def test_light_and_dark_and_small_screens_are_thought_of() -> None:
    html = page(two_steps(), None)
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_pictures_are_inline() -> None:
    html = page(two_steps(), None)
    assert html.count("<svg ") == 3
    assert html.count("<svg ") == html.count("</svg>")


def test_what_a_model_wrote_is_escaped() -> None:
    parts = two_steps()
    parts["evaluator"].append(sample("teacher", 0, "<script>alert(1)</script>", index=1))
    html = page(parts, None, error="<b>bad</b>")
    assert "<script>" not in html
    assert "<b>bad" not in html
    checked(html)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("parts", [{}, {"evaluator": two_steps()["evaluator"][:1]}])
def test_a_run_cut_short_has_a_report_too(parts: dict[str, Any], same: bool) -> None:
    text = checked(page(parts, None, outcome="interrupted", same_tokenizer=same))
    assert "interrupted" in text
    assert "before the student was measured" in text


def test_counters_that_do_not_add_up_are_told() -> None:
    assert "do not add up" in checked(page(two_steps(), status(received=9, trained=5)))


def test_samples_pair_the_same_prompt() -> None:
    events = [
        sample("teacher", 0, "T0"),
        sample("teacher", 0, "T1", index=1),
        sample("student", 0, "before 0"),
        sample("student", 0, "before 1", index=1),
        sample("student", 12, "after 0"),
    ]
    first, second = samples(events)
    assert (first.teacher, first.before, first.after) == ("T0", "before 0", "after 0")
    assert (second.prompt, second.before, second.after) == ("Question 1?", "before 1", None)


def test_blank_and_missing_texts_are_told_apart() -> None:
    parts = {"evaluator": [sample("teacher", 0, "Paris."), sample("student", 0, " \n\n\n ")]}
    text = checked(page(parts, None))
    assert "nothing but blanks" in text
    assert "not measured" in text


def test_a_base_teacher_with_another_tokenizer_is_told_with_its_figures() -> None:
    facts = {"same_tokenizer": False, "teacher_is_base": True, "unit": "safe cut"}
    text = checked(page(two_vocabularies(), None, **facts))
    for part in (
        "base model: it has learnt no chat template, so it scores the raw prompt and completion",
        "1.00 to 0.80 nats per safe cut",
        "1.400 → 1.300 bits per byte of held-out text, 1.100 the teacher’s own",
        "100.0% of the held-out tokens in chunks",
        "mean over 90 safe cuts",
        "on 400 held-out bytes",
        "rollout tokens in chunks 96.9%",
        "rollout tokens in none: not_equal 3",
        "student’s probability outside them 23.0%",
    ):
        assert part in re.sub(r"\s+([.),])", r"\1", text)
    assert page(two_vocabularies(), None, **facts).count("<svg ") == 4


def test_one_tokenizer_has_no_figures_of_bytes() -> None:
    text = checked(page(two_steps(), None))
    assert "base model" not in text
    assert "bits per byte" not in text


def test_the_file_is_written(tmp_path: Path) -> None:
    summary = summarize(two_steps(), None, FACTS)
    write_report(tmp_path / "report.html", summary, two_steps(), "")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")

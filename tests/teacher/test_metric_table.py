"""The table of a teacher's figures is what a teacher tells, and what its page says."""

from __future__ import annotations

import re
from pathlib import Path

from atroposlib.teacher.metric_table import TEACHER_METRICS
from atroposlib.teacher.stats import TeacherStats

PAGE = Path(__file__).parents[2] / "docs" / "teachers.md"


def test_the_table_names_every_figure_that_a_teacher_tells() -> None:
    stats = TeacherStats("math")
    stats.failed["CODE"] = stats.aside["CODE"] = 1
    stats.seconds.append(1.0)
    assert {name.removeprefix("teacher/math/") for name in stats.metrics()} == set(TEACHER_METRICS)


def test_the_page_names_every_figure_of_the_table() -> None:
    told = set(re.findall(r"`([a-z_]+)(?:/<code>)?`", PAGE.read_text(encoding="utf-8")))
    assert {name.removesuffix("/CODE") for name in TEACHER_METRICS} <= told

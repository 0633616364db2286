"""The pictures: well-formed, inside their frame, and true to the values."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from atroposlib.report.svg import HEIGHT, TIMELINE_WIDTH, WIDTH, Lane, line_chart, nice_ticks, timeline

POINTS = [(0.0, 8.3), (4.0, 5.1), (8.0, 3.4), (12.0, 2.5)]


def chart(points: list[tuple[float, float]], **changes: object) -> ET.Element:
    options = {"title": "KL <over> steps", "x_label": "steps", "y_label": "nats & bits", "values": True}
    return ET.fromstring(line_chart(points, **{**options, **changes}))  # type: ignore[arg-type]


def test_points_lie_where_their_values_say() -> None:
    circles = chart(POINTS).findall("circle")
    xs = [float(circle.get("cx", "nan")) for circle in circles]
    ys = [float(circle.get("cy", "nan")) for circle in circles]
    assert all(0 <= x <= WIDTH for x in xs)
    assert all(0 <= y <= HEIGHT for y in ys)
    # Equal steps apart, and heights above the axis in the ratio of the values.
    assert xs[1] - xs[0] == pytest.approx(xs[3] - xs[2], abs=0.2)
    base = max(float(line.get("y1", "nan")) for line in chart(POINTS).findall("line"))
    assert (base - ys[3]) / (base - ys[0]) == pytest.approx(2.5 / 8.3, abs=0.01)


def test_values_are_written_beside_their_points() -> None:
    def texts(values: bool) -> list[str | None]:
        return [text.text for text in chart(POINTS, values=values).findall("text")]

    for _, value in POINTS:
        assert f"{value:.2f}" in texts(True)
        assert f"{value:.2f}" not in texts(False)


def test_texts_are_escaped() -> None:
    root = chart(POINTS)
    assert root.get("aria-label") == "KL <over> steps"
    assert "nats & bits" in [text.text for text in root.findall("text")]


@pytest.mark.parametrize("points", [[(0.0, 8.0)], [(0.0, 0.0), (1.0, 0.0)], [(0.0, 1e-6), (1.0, 5e-7)]])
def test_few_and_small_values_make_a_picture(points: list[tuple[float, float]]) -> None:
    assert len(chart(points).findall("circle")) == len(points)


def test_a_lane_shows_its_intervals() -> None:
    lanes = [Lane("rollouts", "rollout", [(0, 50), (50, 100)]), Lane("steps", "step", [])]
    root = ET.fromstring(timeline(lanes, 100.0, title="busy"))
    first, second = root.findall("rect")
    assert first.get("class") == "rollout"
    assert float(first.get("width", "nan")) == pytest.approx(float(second.get("width", "nan")), abs=0.2)
    assert float(second.get("x", "nan")) + float(second.get("width", "nan")) <= TIMELINE_WIDTH
    assert [text.text for text in root.findall("text") if text.get("class") == "lane"] == [
        "rollouts",
        "steps",
    ]


@pytest.mark.parametrize("high", [1e-6, 0.37, 1.0, 8.44, 99.0, 731.5])
def test_ticks_are_round_even_and_reach_the_top(high: float) -> None:
    ticks = nice_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] >= high * 0.999
    assert 3 <= len(ticks) <= 8
    gaps = {round(after - before, 9) for before, after in pairwise(ticks)}
    assert len(gaps) == 1


def test_steps_have_whole_ticks() -> None:
    assert nice_ticks(2, whole=True) == [0, 1, 2]
    assert nice_ticks(12, whole=True) == [0, 3, 6, 9, 12]

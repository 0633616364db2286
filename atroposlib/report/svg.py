"""Pictures as inline SVG text: a line over steps, and a timeline of who was busy when.

Colours and fonts come from the page by class, so that one picture fits light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 22, 42

TIMELINE_WIDTH = 960
LANE_LABEL, LANE_HEIGHT, LANE_GAP, AXIS_HEIGHT = 128, 22, 10, 24


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a timeline: its name, its colour class, and its intervals (seconds since the start)."""

    name: str
    css_class: str
    intervals: Sequence[tuple[float, float]]


def line_chart(points: Sequence[Point], *, title: str, x_label: str, y_label: str, values: bool) -> str:
    """A line through points, from zero up; ``values`` writes each value beside its point."""
    x_low, x_high = points[0][0], max(points[-1][0], points[0][0] + 1)
    y_ticks = nice_ticks(max(y for _, y in points) * 1.08)
    y_high = y_ticks[-1]

    def at(point: Point) -> Point:
        x = LEFT + (point[0] - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - point[1] / y_high * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    x_ticks = [x_low + tick for tick in nice_ticks(x_high - x_low, whole=True) if x_low + tick <= x_high]
    body = [_y_tick(at((x_low, tick))[1], tick) for tick in y_ticks]
    body += [_x_tick(at((tick, 0))[0], tick) for tick in x_ticks]
    body.append(_text(LEFT, TOP - 9, y_label, "axis"))
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "axis", "middle"))
    body.append(f'<polyline class="line" points="{" ".join(f"{x},{y}" for x, y in map(at, points))}"/>')
    for point in points:
        x, y = at(point)
        body.append(f'<circle class="point" cx="{x}" cy="{y}" r="3.5"/>')
        if values:
            last = point is points[-1] and len(points) > 1
            body.append(
                _text(x + (0 if last else 7), y - 9, f"{point[1]:.2f}", "value", "end" if last else "start")
            )
    return _svg(WIDTH, HEIGHT, title, body)


def timeline(lanes: Sequence[Lane], seconds: float, *, title: str) -> str:
    """One row a lane, with a bar wherever it was busy between 0 and ``seconds``."""
    height = len(lanes) * (LANE_HEIGHT + LANE_GAP) + AXIS_HEIGHT
    scale = (TIMELINE_WIDTH - LANE_LABEL - RIGHT) / max(seconds, 1e-9)
    bottom = height - AXIS_HEIGHT
    body = []
    for tick in nice_ticks(seconds, count=8):
        if tick <= seconds:
            x = LANE_LABEL + tick * scale
            body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>')
            body.append(_text(x, bottom + 16, f"{tick:g} s", "tick", "middle"))
    for row, lane in enumerate(lanes):
        y = row * (LANE_HEIGHT + LANE_GAP)
        body.append(_text(0, y + LANE_HEIGHT - 6, lane.name, "lane"))
        for start, end in lane.intervals:
            x, width = LANE_LABEL + start * scale, max((end - start) * scale, 0.8)
            body.append(
                f'<rect class="{lane.css_class}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
                f'height="{LANE_HEIGHT}" rx="2"/>'
            )
    return _svg(TIMELINE_WIDTH, height, title, body)


def nice_ticks(high: float, *, count: int = 5, whole: bool = False) -> list[float]:
    """About ``count`` round values from zero to at least ``high``."""
    high = max(high, 1e-9)
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
    return [round(index * step, 10) for index in range(math.ceil(high / step - 1e-9) + 1)]


def _y_tick(y: float, value: float) -> str:
    line = f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
    return line + _text(LEFT - 7, y + 4, f"{value:g}", "tick", "end")


def _x_tick(x: float, value: float) -> str:
    return _text(x, HEIGHT - BOTTOM + 18, f"{value:g}", "tick", "middle")


def _text(x: float, y: float, text: str, css_class: str, anchor: str = "start") -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: int, height: int, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(body)}</svg>"
    )

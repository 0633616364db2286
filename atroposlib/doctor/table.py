"""Findings as a table for people and as JSON for programs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from atroposlib.doctor.check import Check, Status, worst

COLOURS: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}
PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""


def print_table(checks: Sequence[Check]) -> None:
    """One block a server, and one line of counts; what to do stands under what was found."""
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("server", "check", "", "found"):
        table.add_column(heading, overflow="fold")
    for server, group in itertools.groupby(checks, key=lambda check: check.server):
        for index, check in enumerate(group):
            table.add_row("" if index else Text(server), check.name, _status(check.status), _found(check))
        table.add_section()
    console.print(table)
    counts = Counter(check.status for check in checks)
    console.print(", ".join(f"{counts[status]} {status}" for status in COLOURS if counts[status]))


def _status(status: Status) -> Text:
    return Text(status, style=COLOURS[status])


def _found(check: Check) -> Text:
    found = Text(check.detail)
    if check.fix and check.status in ("warn", "fail"):
        found.append(f"\n{check.fix}", style="italic")
    return found


def as_json(checks: Sequence[Check]) -> str:
    """``{"status": the gravest, "checks": [...]}``, each check with its fields."""
    told = {"status": worst(checks), "checks": list(checks)}
    # orjson writes null for a number that JSON does not have.
    return orjson.dumps(told, option=orjson.OPT_INDENT_2).decode()

"""Runs every benchmark of this folder and writes their tables into docs/benchmarks.md.

Each benchmark is a script with ``--json FILE`` and ``--check``; FILE holds
``{"title", "rows": [...], "goals": [{"name", "value", "goal", "ok"}]}``.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
NOT_BENCHMARKS = {
    "run.py",
    "simulated_teachers.py",
    "alignment_texts.py",
    "alignment_peer.py",
    "loss_targets.py",
    "crosstok_study.py",  # hours; docs/studies/crosstok.md has its figures
}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table; the first row's keys are the columns."""
    if not rows:
        return ""
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def section(name: str, result: dict[str, Any]) -> str:
    """One benchmark's part of the page."""
    goals = [
        {
            "goal": goal["name"],
            "value": goal["value"],
            "wanted": goal["goal"],
            "met": "yes" if goal["ok"] else "NO",
        }
        for goal in result.get("goals", [])
    ]
    parts = [
        f"## {result.get('title', name)}",
        f"`python benchmarks/{name}.py`",
        table(result["rows"]),
        table(goals),
    ]
    return "\n\n".join(part for part in parts if part)


def main() -> int:
    """Run the chosen benchmarks; exit 1 when one of them fails or misses a goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run (all when omitted)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args()
    found = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if path.name not in NOT_BENCHMARKS}
    sections: list[str] = []
    failed: list[str] = []
    for name in options.names or found:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "result.json"
            done = subprocess.run([sys.executable, str(found[name]), "--json", str(output)], check=False)
            if done.returncode or not output.exists():
                failed.append(name)
                continue
            result = json.loads(output.read_text(encoding="utf-8"))
        failed += [f"{name}: {goal['name']}" for goal in result.get("goals", []) if not goal["ok"]]
        sections.append(section(name, result))
    if not options.names:
        head = (
            "# Benchmarks\n\nWritten by `make bench`. Ratios within one run and medians carry over to other "
            f"machines; single times do not. This run: {date.today()}, {platform.machine()}, "
            f"Python {platform.python_version()}."
        )
        PAGE.write_text("\n\n".join([head, *sections]) + "\n", encoding="utf-8")
    print("missed: " + "; ".join(failed) if failed else "all goals met")
    return 1 if failed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

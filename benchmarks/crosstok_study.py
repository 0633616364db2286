"""Do the losses across tokenizers train a real student? Held-out figures of short runs, loss beside loss.

The teacher is Gemma 3 270M, the student SmolLM2-135M; the set-up is told in docs/studies/crosstok.md. A run
takes minutes on one core. What was made is kept under ``--cache``: texts, the teacher's columns, and the
figures of every run, so that a second call goes on where the first ended.

``--json FILE`` writes the table, ``--check`` exits 1 when a goal is missed or not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from study.losses import LOSSES
from study.measure import Judge, Measures
from study.pairs import Cuts, Item, Pair, Teacher, read_all
from study.student import Student
from study.table import goals, rows
from study.texts import Text, kept_texts, prompts_of
from study.train import train

from atroposlib.demo.assets import GEMMA, SMOLLM, cache_dir, ensure_model

TEACHER_TEXT, OWN_TEXT = "teacher", "own"
STEPS = {TEACHER_TEXT: 24, OWN_TEXT: 12}
RATES = {"ce": [1e-4, 3e-4, 8e-4]}
RATE = 3e-4


@dataclass(frozen=True)
class Run:
    """What one run is named by."""

    part: str
    loss: str
    rate: float
    seed: int
    steps: int


class Study:
    """The prepared texts of both kinds, and the judge of a student."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path = options.cache
        self._dirs = {
            "student": options.student or ensure_model(SMOLLM),
            "teacher": options.teacher or ensure_model(GEMMA),
        }
        self._texts = self._read_texts(options.questions)
        self.pair = Pair(self._dirs["student"], self._dirs["teacher"])
        self.student = Student(self._dirs["student"])
        prepared = self._prepared()
        self._judges = {name: Judge(self.pair, *prepared[name], self.student) for name in ("val", "test")}
        self._items: dict[str, list[Item]] = {
            name: prepared[part][0] for name, part in ((TEACHER_TEXT, "train"), (OWN_TEXT, "own"))
        }
        self._activations = {name: self.student.activations(items) for name, items in self._items.items()}

    def _read_texts(self, questions: Path | None) -> dict[str, list[Text]]:
        prompts = prompts_of(questions)
        writers = {"train": "teacher", "val": "teacher", "test": "teacher", "own": "student"}
        return {
            name: kept_texts(
                self._folder / f"texts-{name}.jsonl",
                self._dirs[writer],
                prompts["train" if name == "own" else name],
                seed,
            )
            for seed, (name, writer) in enumerate(writers.items(), start=1)
        }

    def _prepared(self) -> dict[str, tuple[list[Item], list[Cuts]]]:
        file = self._folder / "prepared.pt"
        if not file.exists():
            teacher = Teacher(self._dirs["teacher"], self.pair)
            made = {
                name: read_all(teacher, texts, cuts=name in ("val", "test"))
                for name, texts in self._texts.items()
            }
            torch.save(made, file)
        # Written above; it holds numpy arrays and our own classes, which the restricted reader refuses.
        found: dict[str, tuple[list[Item], list[Cuts]]] = torch.load(file, weights_only=False)
        return found

    def before(self) -> dict[str, Measures]:
        """The untouched student."""
        self.student.reset()
        return {name: judge.measure(self.student) for name, judge in self._judges.items()}

    def run(self, run: Run) -> dict[str, Any]:
        """Train and measure; one line of the results."""
        course = train(
            self.student,
            self.pair,
            self._items[run.part],
            self._activations[run.part],
            LOSSES[run.loss],
            rate=run.rate,
            steps=run.steps,
            seed=run.seed,
        )
        measured = {name: judge.measure(self.student) for name, judge in self._judges.items()}
        return asdict(run) | {"course": asdict(course)} | lines_of(measured)


def lines_of(measured: dict[str, Measures]) -> dict[str, Any]:
    """Measures as JSON has them: the figures of both sets, and the sums of each test text."""
    each = {name: value.tolist() for name, value in vars(measured["test"]).items()}
    return {name: one.figures() for name, one in measured.items()} | {"each": each}


def results_of(file: Path) -> list[dict[str, Any]]:
    """The lines written so far."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def wanted_runs(options: argparse.Namespace) -> list[Run]:
    """The runs that the options name, in the order they are done."""
    return [
        Run(part, loss, rate, seed, options.steps or STEPS[part])
        for seed in options.seeds
        for part in options.set
        for loss in options.losses
        for rate in (options.rates or (RATES.get(loss, [RATE]) if part == TEACHER_TEXT else [RATE]))
    ]


def run_all(options: argparse.Namespace, file: Path) -> None:
    """Do what is not done yet, a line of the results each."""
    if all(run in done_runs(file) for run in wanted_runs(options)):
        return
    study = Study(options)
    start = Run("before", "none", 0.0, 0, 0)
    if start not in done_runs(file):
        _append(file, asdict(start) | lines_of(study.before()))
    for run in wanted_runs(options):
        # Another process may have done it meanwhile.
        if run in done_runs(file):
            continue
        line = study.run(run)
        _append(file, line)
        print(run, {name: round(float(value), 4) for name, value in line["test"].items()}, flush=True)


def done_runs(file: Path) -> set[Run]:
    """The runs whose lines are written."""
    names = [field.name for field in fields(Run)]
    return {Run(**{name: line[name] for name in names}) for line in results_of(file)}


def _append(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument("--set", nargs="+", choices=list(STEPS), default=list(STEPS), help="texts trained on")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="each orders the texts")
    parser.add_argument("--steps", type=int, help="24 on the teacher's text and 12 on its own when omitted")
    parser.add_argument("--rates", nargs="+", type=float, help="3e-4 when omitted, and three of SFT")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "crosstok-study")
    parser.add_argument("--questions", type=Path, help="folder with GSM8K's train.jsonl and test.jsonl")
    parser.add_argument("--teacher", type=Path, help="its directory; Gemma 3 270M is fetched when omitted")
    parser.add_argument("--student", type=Path, help="its directory; SmolLM2-135M is fetched when omitted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    return parser.parse_args(arguments)


def main() -> int:
    """Run, then show everything that was ever measured in this cache."""
    options = options_of()
    torch.set_num_threads(options.threads)
    options.cache.mkdir(parents=True, exist_ok=True)
    file = options.cache / "results.jsonl"
    run_all(options, file)
    lines = results_of(file)
    found: dict[str, Any] = {"title": "Losses across tokenizers", "rows": rows(lines), "goals": goals(lines)}
    text = json.dumps(found, indent=1)
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    print(text)
    missed = [goal["name"] for goal in found["goals"] if not goal["ok"]]
    print("missed: " + "; ".join(missed) if missed else "all goals met")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

"""Entry points of ``atropos projection build`` and ``atropos projection inspect``."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec
import orjson

from atroposlib.align.tables.table import Vocabulary
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.config.projection import ProjectionBuildSettings, ProjectionInspectSettings
from atroposlib.projection.build import BuildOptions, build
from atroposlib.projection.figures import Figures, examples, figures
from atroposlib.projection.files import Projection, ProjectionFacts, load, save
from atroposlib.projection.speller import Speller

STEPS = ("top_k", "reverse_pass", "special_tokens", "exact_map", "scale_trick")


def run_build(settings: ProjectionBuildSettings) -> None:
    """Build a projection and write it.

    Raises:
        ConfigError: A tokenizer's files cannot be read (``usage.file``), or not as bytes
            (``align.unsupported``).
    """
    begun = time.monotonic()
    student, teacher = Speller(settings.student), Speller(settings.teacher)
    steps = settings.model_dump(include=set(STEPS))
    facts = ProjectionFacts(
        student=settings.student,
        teacher=settings.teacher,
        student_fingerprint=student.vocabulary.fingerprint,
        teacher_fingerprint=teacher.vocabulary.fingerprint,
        settings=steps,
    )
    save(build(student, teacher, BuildOptions(**steps)), facts, settings.output)
    found = figures(load(settings.output))
    sys.stdout.write(
        f"{settings.output}: {found.rows} rows, {found.exact} of them exact, {found.several} of several "
        f"tokens, {found.empty} empty, in {time.monotonic() - begun:.1f} s\n"
    )


def run_inspect(settings: ProjectionInspectSettings) -> None:
    """Print what a projection file holds.

    Raises:
        ConfigError: It cannot be read (``usage.file``), or a tokenizer's files cannot.
    """
    projection = load(settings.file)
    student = vocabulary_of(settings.student) if settings.student else None
    teacher = vocabulary_of(settings.teacher) if settings.teacher else None
    found = figures(projection)
    rows = [
        {
            "student": _shown(student, row),
            "teacher": [{"token": _shown(teacher, number), "weight": weight} for number, weight in entries],
        }
        for row, entries in examples(projection, settings.examples).items()
    ]
    notes = _mismatches(projection.facts, student, teacher)
    if settings.json:
        told = {
            "facts": msgspec.structs.asdict(projection.facts),
            "figures": found,
            "notes": notes,
            "examples": rows,
        }
        sys.stdout.write(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    for line in [str(settings.file), *_facts(projection), *_counts(found), *notes, *_rows(rows)]:
        sys.stdout.write(line + "\n")


def _shown(vocabulary: Vocabulary | None, number: int) -> str:
    """An id, with what it stands for where that is known."""
    if vocabulary is None:
        return str(number)
    written = vocabulary.names.get(number) or repr(
        vocabulary.bytes_of(number).decode(errors="backslashreplace")
    )
    return f"{number} {written}"


def _mismatches(facts: ProjectionFacts, student: Vocabulary | None, teacher: Vocabulary | None) -> list[str]:
    sides = (
        ("student", student, facts.student_fingerprint),
        ("teacher", teacher, facts.teacher_fingerprint),
    )
    return [
        f"made for another tokenizer than this {name}: fingerprint {made_for}, not {given.fingerprint}"
        for name, given, made_for in sides
        if given is not None and made_for and made_for != given.fingerprint
    ]


def _facts(projection: Projection) -> list[str]:
    told = {name: value for name, value in msgspec.structs.asdict(projection.facts).items() if value}
    settings = told.pop("settings", {})
    if settings:
        told["settings"] = ", ".join(f"{name} {value}" for name, value in sorted(settings.items()))
    return [f"{name.replace('_', ' '):<22}{value}" for name, value in told.items()]


def _counts(found: Figures) -> list[str]:
    def share(count: int) -> str:
        return f"{count} ({count / found.rows:.1%})"

    check = "all rows sum to 1" if not found.off_rows else f"{found.off_rows} rows do not sum to 1"
    lines: dict[str, Any] = {
        "shape": f"{found.rows} rows, up to {found.columns} columns, {found.entries} entries, "
        f"teacher ids to {found.highest_teacher_id}",
        "row sums": f"{found.least_sum:.4f} to {found.most_sum:.4f}: {check}",
        "exact rows": share(found.exact),
        "rows of several": share(found.several),
        "empty rows": share(found.empty),
    }
    return [f"{name:<22}{value}" for name, value in lines.items()]


def _rows(rows: list[dict[str, Any]]) -> list[str]:
    return [
        f"  {row['student']} -> "
        + ", ".join(f"{entry['token']} ({entry['weight']:.3f})" for entry in row["teacher"])
        for row in rows
    ]

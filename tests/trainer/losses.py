"""One training step of a run with some losses, in float64, and what moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atroposlib.collate import CollateCounts, TrainSequence, train_sequences
from atroposlib.config.projection import ProjectionBuildSettings
from atroposlib.config.trainer import TrainerSettings
from atroposlib.projection.run import run_build
from atroposlib.trainer.step import StepResult, train_step
from atroposlib.trainer.student import StudentWithLoss, load_student
from atroposlib.trainer.teachers import TeacherPairs
from atroposlib.trainer.terms.build import wanted_by
from atroposlib.types import Group
from tests.support.tiny import VOCAB_SIZE, write_tiny_model
from tests.support.tiny_teacher import write_other_model
from tests.trainer.scored_groups import all_groups, through_wire

STEP = 5
"""Which the student is at."""


@dataclass(frozen=True)
class World:
    """A student, a teacher with another tokenizer, and groups of this and of one with the student's.

    Attributes:
        student, teacher: Directories.
        raw: The groups as they are posted.
        groups: The same as a trainer gets them.
        teachers: What the trainer's settings say of the teachers.
    """

    student: Path
    teacher: Path
    raw: list[dict[str, Any]]
    groups: list[Group]
    teachers: dict[str, dict[str, Any]]


def make_world(directory: Path) -> World:
    """Written to ``directory``."""
    student = write_tiny_model(directory / "student")
    teacher = write_other_model(directory / "teacher")
    projection = directory / "projection.safetensors"
    run_build(ProjectionBuildSettings(student=str(student), teacher=str(teacher), output=projection))
    raw = all_groups(student, teacher)
    teachers = {"teacher": {}, "other": {"tokenizer": str(teacher), "projection": str(projection)}}
    return World(student, teacher, raw, through_wire(raw), teachers)


@dataclass(frozen=True)
class Step:
    """What one step of plain gradient descent did.

    Attributes:
        gradient: Of all parameters, flat; float64.
        result: What the step reports.
        sequences: What was trained.
        counts: What was not.
    """

    gradient: torch.Tensor
    result: StepResult
    sequences: list[TrainSequence]
    counts: CollateCounts


def settings_of(world: World, loss: Any, **changes: Any) -> TrainerSettings:
    """Of a run on the CPU."""
    given = {
        "model": "m",
        "output_dir": "o",
        "device": "cpu",
        "max_grad_norm": 1e9,
        "teachers": world.teachers,
    }
    return TrainerSettings(**(given | {"loss": loss} | changes))


def read(
    student: StudentWithLoss, settings: TrainerSettings, world: World, groups: Sequence[Group]
) -> tuple[list[TrainSequence], CollateCounts]:
    """The sequences that the student's losses learn from."""
    pairs = TeacherPairs(world.student, settings.teachers)
    wanted = wanted_by(student.terms, settings, pairs.of, lambda: STEP)
    return train_sequences(groups, max_token_len=64, vocab_size=VOCAB_SIZE, wanted=wanted)


def step(world: World, loss: Any, groups: Sequence[Group] | None = None, **changes: Any) -> Step:
    """One step; the change of parameters at rate 1 is the gradient."""
    settings = settings_of(world, loss, **changes)
    student = load_student(world.student, settings)
    student.double()
    sequences, counts = read(student, settings, world, world.groups if groups is None else groups)
    before = [parameter.detach().clone() for parameter in student.parameters()]
    optimizer = torch.optim.SGD(student.parameters(), lr=1.0)
    result = train_step(student, optimizer, sequences, rate=1.0, settings=settings)
    moved = [(old - new).flatten() for old, new in zip(before, student.parameters(), strict=True)]
    return Step(torch.cat(moved).detach(), result, sequences, counts)

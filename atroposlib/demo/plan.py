"""What is settled before the first process of a demo starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atroposlib.config.demo import DemoSettings
from atroposlib.demo.files import RunFiles

if TYPE_CHECKING:
    from atroposlib.demo.vllm_backend import Vllm

HOST = "127.0.0.1"
TEACHER, STUDENT, API = "teacher", "student", "api"
TRAINER, ENVIRONMENT, EVALUATOR = "trainer", "environment", "evaluator"
PRUNED_LEARNING_RATE, WHOLE_LEARNING_RATE = 8e-4, 2e-4


@dataclass(frozen=True, slots=True)
class Models:
    """The two models of a run, and how the student came about.

    Attributes:
        teacher: Directory of the teacher's weights; only the evaluator and the teacher's server open it.
        student: Directory of the student before training.
        teacher_title: The teacher's name for people.
        student_title: The student's name for people.
        student_origin: One sentence that says what the student is.
        teacher_tokenizer: Directory of a tokenizer that is the teacher's, for the environment to compare with
            the student's; the student's own when it is a copy.
        same_tokenizer: Whether every id says the same to both.
        teacher_is_base: Whether the teacher's tokenizer has no chat template, so that the teacher reads the
            prompt and the completion as plain text.
        teacher_url: Server of a teacher that runs already; None when the demo starts one.
        teacher_served_as: Model id that the teacher's server goes by.
    """

    teacher: Path
    student: Path
    teacher_title: str
    student_title: str
    student_origin: str
    teacher_tokenizer: Path
    same_tokenizer: bool = True
    teacher_is_base: bool = False
    teacher_url: str | None = None
    teacher_served_as: str = TEACHER


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback ports of a run's servers."""

    api: int
    student: int
    teacher: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is settled before the first process starts."""

    settings: DemoSettings
    files: RunFiles
    models: Models
    ports: Ports
    environment_file: Path
    prompts: list[list[dict[str, str]]]
    vllm: Vllm | None = None

    @property
    def api_url(self) -> str:
        """URL of the trajectory API."""
        return f"http://{HOST}:{self.ports.api}"

    @property
    def student_url(self) -> str:
        """URL of the student's server."""
        return f"http://{HOST}:{self.ports.student}"

    @property
    def teacher_url(self) -> str:
        """URL of the teacher's server."""
        return self.models.teacher_url or f"http://{HOST}:{self.ports.teacher}"

    @property
    def unit(self) -> str:
        """What the training loss and the held-out KL are means over."""
        return "token" if self.models.same_tokenizer else "safe cut"

    @property
    def learning_rate(self) -> float:
        """Peak learning rate: the one that was asked for, or what suits the student."""
        is_pruned = self.models.student == self.files.student
        return self.settings.learning_rate or (PRUNED_LEARNING_RATE if is_pruned else WHOLE_LEARNING_RATE)

    @property
    def threads(self) -> int:
        """Compute threads of each model process."""
        return self.settings.threads or shared_threads(os.cpu_count() or 1)


def shared_threads(cores: int) -> int:
    """Threads of one model process when four of them share the cores: rollouts, scores, steps, evaluation."""
    return max(1, cores // 2)

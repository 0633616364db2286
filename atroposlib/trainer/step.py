"""One optimizer step: micro-batches, gradients of the global mean, clipping, AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from atroposlib.collate.batch import collate
from atroposlib.collate.sequences import TrainSequence
from atroposlib.config.trainer import TrainerSettings
from atroposlib.trainer.student import StudentWithLoss
from atroposlib.trainer.tally import Tally

FINAL_SHARE = 0.1
"""Share of the peak learning rate that a falling schedule ends at."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did.

    Attributes:
        applied: False when the loss or a gradient was not finite and the weights were left alone.
        loss: Weighted sum of all losses, each the mean over what it reads, in nats.
        grad_norm: Norm of the gradient before clipping.
        captured_mass: Mean teacher probability on the columns; None where no loss tells it.
        terms: What each loss said of each teacher.
    """

    applied: bool
    loss: float
    grad_norm: float
    captured_mass: float | None
    terms: list[dict[str, Any]]


def build_optimizer(student: StudentWithLoss, settings: TrainerSettings) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices, none on norms and biases."""
    parameters = [parameter for parameter in student.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        fused=True,
    )


def learning_rate(step: int, settings: TrainerSettings) -> float:
    """Learning rate of optimizer step ``step`` (counted from 1): a linear rise, then the schedule."""
    if step < settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.learning_rate
    after_warmup = max(1, settings.total_steps - max(1, settings.warmup_steps))
    fallen = (step - max(1, settings.warmup_steps)) / after_warmup
    return settings.learning_rate * (1.0 - (1.0 - FINAL_SHARE) * fallen)


def micro_batches(sequences: Sequence[TrainSequence], size: int) -> list[list[TrainSequence]]:
    """Sequences of like length together, so that little of a pass is padding; a pair stays together."""
    bundles: dict[object, list[TrainSequence]] = {}
    for index, sequence in enumerate(sequences):
        key = ("alone", index) if sequence.place is None else ("pair", sequence.place.pair)
        bundles.setdefault(key, []).append(sequence)
    parts: list[list[TrainSequence]] = []
    for bundle in sorted(bundles.values(), key=lambda bundle: max(map(len, bundle)), reverse=True):
        if not parts or len(parts[-1]) + len(bundle) > size:
            parts.append([])
        parts[-1] += bundle
    return parts


def train_step(
    student: StudentWithLoss,
    optimizer: torch.optim.Optimizer,
    sequences: Sequence[TrainSequence],
    *,
    rate: float,
    settings: TrainerSettings,
) -> StepResult:
    """Take one step on all sequences together.

    Every loss of a micro-batch is a sum divided by a count of the whole step, so gradients do not depend on
    how the sequences are split. A loss or gradient that is not finite leaves weights and optimizer untouched.
    """
    device = next(student.parameters()).device
    counts = [term.count(sequences) for term in student.terms]
    tally = Tally()
    for part in micro_batches(sequences, settings.micro_batch_size):
        loss, said = student(collate(part).to(device), counts)
        loss.backward()
        tally.add(said)
    norm = torch.nn.utils.clip_grad_norm_(student.parameters(), settings.max_grad_norm)
    total, grad_norm = tally.total(), float(norm)
    applied = math.isfinite(total) and math.isfinite(grad_norm)
    if applied:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(applied, total, grad_norm, tally.mean("captured_mass"), tally.entries())

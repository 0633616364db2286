"""One optimizer step: micro-batches, gradients of the global mean, clipping, AdamW."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atroposlib.collate.batch import collate
from atroposlib.collate.sequences import TrainSequence
from atroposlib.config.trainer import TrainerSettings
from atroposlib.trainer.student import StudentWithLoss

FINAL_SHARE = 0.1
"""Share of the peak learning rate that a falling schedule ends at."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did.

    Attributes:
        applied: False when the loss or a gradient was not finite and the weights were left alone.
        loss: Mean over the rows with a target, in nats.
        grad_norm: Norm of the gradient before clipping.
        captured_mass: Mean teacher probability on the present columns.
    """

    applied: bool
    loss: float
    grad_norm: float
    captured_mass: float


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
    """Sequences of like length together, so that little of a forward pass is padding."""
    by_length = sorted(sequences, key=lambda sequence: len(sequence.token_ids), reverse=True)
    return [by_length[start : start + size] for start in range(0, len(by_length), size)]


def train_step(
    student: StudentWithLoss,
    optimizer: torch.optim.Optimizer,
    sequences: Sequence[TrainSequence],
    *,
    rate: float,
    settings: TrainerSettings,
) -> StepResult:
    """Take one step on all sequences together.

    Every micro-batch's loss is a sum divided by the row count of the whole step, so gradients do not
    depend on how the sequences are split. A loss or gradient that is not finite leaves weights and
    optimizer untouched.
    """
    device = next(student.parameters()).device
    rows = sum(len(sequence.positions) for sequence in sequences)
    loss_sum = captured = torch.zeros((), dtype=torch.float64, device=device)
    for part in micro_batches(sequences, settings.micro_batch_size):
        loss, metrics = student(collate(part).to(device), rows)
        loss.backward()
        loss_sum = loss_sum + metrics["loss"]
        captured = captured + metrics["captured_mass"]
    norm = torch.nn.utils.clip_grad_norm_(student.parameters(), settings.max_grad_norm)
    mean_loss, grad_norm = float(loss_sum) / rows, float(norm)
    applied = math.isfinite(mean_loss) and math.isfinite(grad_norm)
    if applied:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepResult(applied, mean_loss, grad_norm, float(captured) / rows)

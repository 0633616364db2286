"""One run of the study: a loss, a rate, a seed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from study.losses import Loss
from study.pairs import Item, Pair
from study.student import Student

TEXTS_A_STEP = 8


@dataclass(frozen=True)
class Course:
    """What happened in a run.

    Attributes:
        losses: The loss of every step, in its own unit.
        first_norm: Norm of the first step's gradient.
        seconds_a_step: Mean over all steps.
        metrics: Sums over all steps of what the loss reported.
    """

    losses: list[float]
    first_norm: float
    seconds_a_step: float
    metrics: dict[str, float]


def train(
    student: Student,
    pair: Pair,
    items: Sequence[Item],
    activations: Sequence[Tensor],
    loss: Loss,
    *,
    rate: float,
    steps: int,
    seed: int,
) -> Course:
    """Train from the weights of the file; the seed orders the texts."""
    student.reset()
    optimizer, schedule = student.optimizer(rate, steps)
    losses: list[float] = []
    norms: list[float] = []
    metrics: dict[str, float] = {}
    begun = time.perf_counter()
    for chosen in _batches(len(items), steps, seed):
        hidden = student.hidden([activations[number] for number in chosen])
        value, said = loss(hidden, student.head, pair, [items[number] for number in chosen])
        optimizer.zero_grad()
        value.backward()
        norms.append(_norm(optimizer))
        optimizer.step()
        schedule.step()
        losses.append(float(value.detach()))
        for name, number in said.items():
            metrics[name] = metrics.get(name, 0.0) + float(number)
    return Course(losses, norms[0], (time.perf_counter() - begun) / steps, metrics)


def _batches(count: int, steps: int, seed: int) -> Iterator[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    left: list[int] = []
    for _ in range(steps):
        if len(left) < TEXTS_A_STEP:
            left += torch.randperm(count, generator=draw).tolist()
        yield left[:TEXTS_A_STEP]
        left = left[TEXTS_A_STEP:]


def _norm(optimizer: Any) -> float:
    gradients = [weight.grad for group in optimizer.param_groups for weight in group["params"]]
    return float(torch.nn.utils.get_total_norm([one for one in gradients if one is not None]))

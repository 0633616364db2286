"""Adds up over the micro-batches of a step what each loss said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atroposlib.trainer.terms.term import TermLoss

UNITS = ("rows", "cuts")
"""Metrics that count what a loss's other metrics are sums over."""


class Tally:
    """The losses of one step, by loss and teacher."""

    def __init__(self) -> None:
        self._losses: dict[tuple[str, str | None, float], Tensor] = {}
        self._metrics: dict[tuple[str, str | None, float], dict[str, Tensor]] = {}

    def add(self, said: Sequence[TermLoss]) -> None:
        """Take in one micro-batch."""
        for one in said:
            key = one.name, one.teacher, one.weight
            loss = one.loss.detach().double()
            self._losses[key] = self._losses[key] + loss if key in self._losses else loss
            sums = self._metrics.setdefault(key, {})
            for name, value in one.metrics.items():
                sums[name] = sums[name] + value if name in sums else value

    def total(self) -> float:
        """The weighted sum of all losses."""
        return float(sum((weight * loss for (_, _, weight), loss in self._losses.items()), torch.zeros(())))

    def mean(self, metric: str) -> float | None:
        """A metric per row, over all losses that tell it; None when none does."""
        told = [
            sums for sums in self._metrics.values() if metric in sums and any(one in sums for one in UNITS)
        ]
        units = sum(int(sums[one]) for sums in told for one in UNITS if one in sums)
        return sum(float(sums[metric]) for sums in told) / units if units else None

    def entries(self) -> list[dict[str, Any]]:
        """One mapping for each loss and teacher: its mean loss, and its metrics, which are sums."""
        return [
            {
                "name": name,
                **({} if teacher is None else {"teacher": teacher}),
                "weight": weight,
                **{metric: value.item() for metric, value in self._metrics[name, teacher, weight].items()},
                "loss": float(loss),
            }
            for (name, teacher, weight), loss in self._losses.items()
        ]

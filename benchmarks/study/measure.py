"""What the study measures on held-out text: against the teacher's whole distribution, by dense formulas.

Nothing here is shared with the losses, which it judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from atroposlib.losses.linear import logits_of
from study.pairs import Cuts, Item, Pair
from study.student import Student

Floats = npt.NDArray[np.float64]
RESAMPLES = 4000


@dataclass(frozen=True)
class Measures:
    """Sums of each of n texts, float64 [n].

    Attributes:
        nats: The student's surprisal of the text.
        teacher_nats: The teacher's.
        total_bytes: The text's length.
        gap: Sum over minimal chunks of \\|a - s\\|, the difference of the two surprisals, in nats.
        kl: Sum over safe cuts of KL(teacher || student) of the quotient, in nats.
        cuts: How many safe cuts.
        outside, teacher_outside: Mass outside the cells that the teacher's top-k shows, summed over cuts.
    """

    nats: Floats
    teacher_nats: Floats
    total_bytes: Floats
    gap: Floats
    kl: Floats
    cuts: Floats
    outside: Floats
    teacher_outside: Floats

    def figures(self) -> dict[str, float]:
        """Means over the whole set: nats per cut, bits and nats per byte."""
        size, cuts = self.total_bytes.sum(), self.cuts.sum()
        return {
            "bits_per_byte": self.nats.sum() / size / np.log(2),
            "teacher_bits_per_byte": self.teacher_nats.sum() / size / np.log(2),
            "chunk_gap": self.gap.sum() / size,
            "quotient_kl": self.kl.sum() / cuts,
            "outside": self.outside.sum() / cuts,
            "teacher_outside": self.teacher_outside.sum() / cuts,
        }


class Judge:
    """Measures a student on fixed texts."""

    def __init__(self, pair: Pair, items: Sequence[Item], cuts: Sequence[Cuts], student: Student) -> None:
        width = student.head.weight.shape[0]
        self._component = pair.components("student", width)
        self._first = pair.first_bytes("student", width)
        self._safe = torch.from_numpy(pair.safe)
        self._number = pair.outcomes
        self._items, self._cuts = items, cuts
        self._activations = student.activations(items)

    def measure(self, student: Student) -> Measures:
        """Every sum of every text."""
        rows = []
        with torch.inference_mode():
            for activations, item, cuts in zip(self._activations, self._items, self._cuts, strict=True):
                logprobs = logits_of(student.hidden([activations])[0], student.head).log_softmax(-1)
                rows.append([*_surprisals(item, logprobs), *self._quotient(cuts, logprobs)])
        return Measures(*np.array(rows, dtype=np.float64).T)

    def _quotient(self, cuts: Cuts, logprobs: Tensor) -> list[float]:
        keep = self._safe[torch.from_numpy(cuts.before)][:, self._first]
        shown = logprobs[torch.from_numpy(cuts.rows)].exp() * keep
        shown /= shown.sum(-1, keepdim=True)
        masses = shown.new_zeros(len(shown), self._number + 1).index_add_(1, self._component, shown)
        theirs, ours = cuts.masses.double(), masses.gather(-1, cuts.components).double()
        rest = (1 - theirs.sum(-1)).clamp_min(1e-9), (1 - ours.sum(-1)).clamp_min(1e-9)
        kl = _terms(theirs, ours).sum(-1) + _terms(*rest)
        # A component may be shipped by several of its ids.
        listed = torch.zeros_like(masses).scatter_(-1, cuts.shipped % (self._number + 1), 1.0)
        listed[:, -1] = 0
        outside = 1 - (masses * listed).sum(-1)
        teacher_outside = 1 - cuts.shipped_mass.double()
        return [float(kl.sum()), len(shown), float(outside.sum()), float(teacher_outside.sum())]


def _terms(theirs: Tensor, ours: Tensor) -> Tensor:
    return torch.where(theirs > 0, theirs * (theirs.clamp_min(1e-30) / ours.clamp_min(1e-30)).log(), 0.0)


def _surprisals(item: Item, logprobs: Tensor) -> list[float]:
    nats = np.zeros(len(item.student_ids))
    nats[1:] = -logprobs[:-1].gather(-1, torch.from_numpy(item.student_ids[1:, None]))[:, 0].double().numpy()
    chunks = int(item.student_chunk_id.max()) + 1
    used = np.unique(item.student_chunk_id[item.trained])
    ours, theirs = np.zeros(chunks), np.zeros(chunks)
    known = item.student_chunk_id >= 0
    np.add.at(ours, item.student_chunk_id[known], nats[known])
    known = item.teacher_chunk_id[1:] >= 0
    np.add.at(theirs, item.teacher_chunk_id[1:][known], -item.logprobs[known, 0].astype(np.float64))
    gap = np.abs(ours - theirs)[used].sum()
    return [float(nats[item.trained].sum()), item.nats, item.total_bytes, float(gap)]


def difference(one: Floats, other: Floats, size: Floats) -> tuple[float, float, float]:
    """(one - other) / size over all texts, and its 95 % interval over draws of texts (paired bootstrap)."""
    drawn = np.random.default_rng(0).integers(len(size), size=(RESAMPLES, len(size)))
    means = (one - other)[drawn].sum(1) / size[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float((one - other).sum() / size.sum()), float(low), float(high)

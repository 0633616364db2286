"""The exact toy world: principled losses are 0 at the teacher's own text distribution, and least there."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from atroposlib.collate.across import ChunkArrays, joined
from atroposlib.losses.across import ChunkTargets, chunk_likelihood, quotient_distillation
from atroposlib.losses.head import Head
from tests.support.toy_world import (
    SIDES,
    STUDENT,
    TEACHER,
    Tokens,
    ToySequence,
    sample_text,
    toy_sequence,
)

TILTS = (0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
EVERY = len(TEACHER) + 1

PRINCIPLED: dict[str, Callable[..., tuple[Tensor, dict[str, Tensor]]]] = {
    "quotient with paths": quotient_distillation,
    "quotient": functools.partial(quotient_distillation, path=False),
    "quotient with residuals": functools.partial(quotient_distillation, path=False, residual_weight=1.0),
    "reverse quotient with paths": functools.partial(quotient_distillation, divergence="reverse"),
    "jsd quotient with paths": functools.partial(quotient_distillation, divergence="jsd"),
    "likelihood": chunk_likelihood,
    "likelihood, tau 1": functools.partial(chunk_likelihood, tau=1.0),
    "reverse likelihood": functools.partial(chunk_likelihood, direction="reverse"),
}


@functools.cache
def world() -> tuple[list[ToySequence], ChunkArrays, int]:
    sequences = [toy_sequence(sample_text(70, seed)) for seed in range(3)]
    length = max(len(sequence.student_ids) for sequence in sequences)
    parts = [(sequence.arrays(EVERY), row * length) for row, sequence in enumerate(sequences)]
    return sequences, joined(parts), length


def logits_at(tilt: float) -> Tensor:
    """[N, V] of the tilted student at the rows of the targets."""
    sequences, arrays, length = world()
    rows = np.zeros((len(sequences) * length, len(STUDENT) + 1))
    for index, sequence in enumerate(sequences):
        p = sequence.student(tilt)
        rows[index * length : index * length + len(p) - 1] = np.log(np.maximum(p[1:], 1e-300))
    return torch.tensor(rows[arrays.positions], requires_grad=True)


def value_and_gradient(loss: Callable[..., tuple[Tensor, object]], tilt: float) -> tuple[float, float]:
    logits = logits_at(tilt)
    head = Head(torch.eye(logits.shape[-1], dtype=torch.float64))
    found, _ = loss(logits, head, ChunkTargets.of(world()[1]), global_count=world()[1].cuts)
    return float(found.detach()), float(torch.autograd.grad(found, logits)[0].abs().max())


@pytest.mark.parametrize("name", PRINCIPLED)
def test_principled_losses_are_zero_where_both_define_one_distribution_and_least_there(name: str) -> None:
    at = {tilt: value_and_gradient(PRINCIPLED[name], tilt) for tilt in TILTS}
    value, gradient = at[1.0]
    assert abs(value) < 1e-8
    assert gradient < 1e-8
    assert min(at, key=lambda tilt: at[tilt][0]) == 1.0
    assert min(found for tilt, (found, _) in at.items() if tilt != 1.0) > 1e-5


def test_likelihood_of_minimal_chunks_has_a_bias_that_the_others_are_free_of() -> None:
    at = {
        tilt: value_and_gradient(functools.partial(chunk_likelihood, debiased=False), tilt)[0]
        for tilt in TILTS
    }
    assert at[1.0] > 0.02
    assert min(at, key=lambda tilt: at[tilt]) != 1.0


@pytest.mark.parametrize("tokens", SIDES)
def test_the_distributions_of_the_toy_are_the_frequencies_of_sampled_text(tokens: Tokens) -> None:
    ids = tokens.encode(sample_text(20_000, 0))
    followers: dict[tuple[int, int], list[int]] = {}
    for before, middle, behind in zip(ids, ids[1:], ids[2:], strict=False):
        followers.setdefault((before, middle), []).append(behind)
    for pair in sorted(followers, key=lambda pair: -len(followers[pair]))[:5]:
        counts = np.bincount(followers[pair], minlength=len(tokens.text) + 1)
        # What stands before the two says nothing: the chain has one letter of memory.
        expected = tokens.distributions([tokens.bos, *pair, 0], 1.0)[3]
        np.testing.assert_allclose(counts / counts.sum(), expected, atol=4 / np.sqrt(counts.sum()))

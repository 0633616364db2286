"""The chunk likelihood against surprisals written out in plain Python, its limit, and what it refuses."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from atroposlib.collate.across import ChunkArrays
from atroposlib.errors import ConfigError
from atroposlib.losses.across import ChunkTargets, chunk_likelihood
from atroposlib.losses.head import Head
from tests.support.toy_losses import chunk_logs, class_of_student, class_of_teacher, named, safe_cuts
from tests.support.toy_world import STUDENT, ToySequence, sample_text, toy_sequence

WIDTH = len(STUDENT) + 1


def random_logits(sequence: ToySequence, seed: int) -> Tensor:
    """[T, V]: row t predicts token t."""
    generator = torch.Generator().manual_seed(seed)
    shape = len(sequence.student_ids), WIDTH
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2).requires_grad_()


def loss_and_metrics(
    logits: Tensor, arrays: ChunkArrays, **settings: object
) -> tuple[Tensor, dict[str, Tensor]]:
    hidden = logits[torch.from_numpy(arrays.positions) + 1]
    head = Head(torch.eye(WIDTH, dtype=torch.float64))
    return chunk_likelihood(hidden, head, ChunkTargets.of(arrays), global_count=1, **settings)


def divergence(a: float | Tensor, s: Tensor, tau: float | None) -> Tensor:
    a = torch.as_tensor(a, dtype=torch.float64)
    if tau is None:
        return a * torch.log(a / s) - a + s
    p, q = torch.exp(-a / tau), torch.exp(-s / tau)
    return tau * (p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q)))


@pytest.mark.parametrize("tau", [None, 1.0, 5.0])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_debiased_loss_and_gradient_are_those_of_the_written_out_formula(
    tau: float | None, direction: str
) -> None:
    sequence = toy_sequence(sample_text(40, 4))
    logits = random_logits(sequence, 4)
    cuts = safe_cuts(sequence)
    expected = torch.zeros((), dtype=torch.float64)
    for cut, end in itertools.pairwise(cuts):
        student, teacher = chunk_logs(sequence, logits.log_softmax(-1), 3, cut, end)
        pair = (torch.tensor(-teacher), -student)
        expected = expected + divergence(*(pair if direction == "forward" else pair[::-1]), tau)
    found, _ = loss_and_metrics(logits, sequence.arrays(3), tau=tau, direction=direction)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_without_debias_it_compares_minimal_chunks_and_needs_no_top_k() -> None:
    sequence = toy_sequence(sample_text(40, 5))
    logits = random_logits(sequence, 5)
    log_p = logits.log_softmax(-1)
    expected = torch.zeros((), dtype=torch.float64)
    chunks = 0
    for chunk in range(1, int(sequence.student_chunk_id.max()) + 1):
        ours = [t for t, label in enumerate(sequence.student_chunk_id) if label == chunk]
        theirs = [u for u, label in enumerate(sequence.teacher_chunk_id) if label == chunk]
        s = -sum(log_p[t, sequence.student_ids[t]] for t in ours)
        a = -sum(math.log(named(sequence, 0, u)[sequence.teacher_ids[u]]) for u in theirs)
        expected = expected + divergence(a, s, None)
        chunks += 1
    found, metrics = loss_and_metrics(logits, sequence.arrays(0), debiased=False)
    torch.testing.assert_close(found, expected)
    assert int(metrics["chunks"]) == chunks
    assert int(metrics["tokens"]) == len(sequence.student_ids) - 1


def test_large_temperatures_tend_to_the_limit() -> None:
    sequence = toy_sequence(sample_text(40, 6))
    logits, arrays = random_logits(sequence, 6), sequence.arrays(3)
    limit, _ = loss_and_metrics(logits, arrays)
    errors = [
        abs(float((loss_and_metrics(logits, arrays, tau=tau)[0] - limit).detach())) for tau in (10, 100, 1000)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01 * float(limit.detach())


def test_surprisals_of_safe_chunks_telescope() -> None:
    sequence = toy_sequence(sample_text(60, 7))
    logits = random_logits(sequence, 7)
    log_p = logits.log_softmax(-1)
    first, *_, last = safe_cuts(sequence)
    student = -sum(log_p[t, sequence.student_ids[t]] for t in range(first.student, last.student))
    student = student - class_of_student(sequence, log_p, last)
    teacher = -sum(
        math.log(named(sequence, 4, u)[sequence.teacher_ids[u]]) for u in range(first.teacher, last.teacher)
    )
    teacher -= math.log(class_of_teacher(sequence, named(sequence, 4, last.teacher), last))
    _, metrics = loss_and_metrics(logits, sequence.arrays(4))
    # The first cut stands behind a marker: every token is in its class.
    assert float(metrics["student_surprisal"]) == pytest.approx(float(student.detach()))
    assert float(metrics["teacher_surprisal"]) == pytest.approx(teacher)


def test_without_top_k_nothing_is_debiased() -> None:
    sequence = toy_sequence(sample_text(40, 5))
    loss, metrics = loss_and_metrics(random_logits(sequence, 5), sequence.arrays(0))
    assert float(loss.detach()) == 0.0
    assert int(metrics["chunks"]) == 0


@pytest.mark.parametrize("settings", [{"tau": 0.0}, {"direction": "both"}])
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object]) -> None:
    sequence = toy_sequence(sample_text(10, 1))
    with pytest.raises(ConfigError) as caught:
        loss_and_metrics(random_logits(sequence, 1), sequence.arrays(2), **settings)
    assert caught.value.code == "config.invalid"

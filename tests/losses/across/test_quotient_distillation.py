"""The quotient KL against formulas written out in plain Python, and what must not change it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atroposlib.collate.across import ChunkArrays, joined
from atroposlib.errors import ConfigError
from atroposlib.losses.across import ChunkTargets, quotient_distillation
from atroposlib.losses.head import Head
from atroposlib.losses.linear import logits_of
from tests.support.toy_losses import (
    chunk_logs,
    complete,
    components,
    events_at,
    forward_kl,
    named,
    observed,
    quotient_events,
    safe_cuts,
)
from tests.support.toy_world import STUDENT, TEACHER, Tokens, ToySequence, sample_text, toy_sequence

WIDTH = len(STUDENT) + 1
EVERY = len(TEACHER) + 1
IDENTITY = Head(torch.eye(WIDTH, dtype=torch.float64))


def random_logits(sequence: ToySequence, seed: int, scale: float = 2.0) -> Tensor:
    """[T, V]: row t predicts token t."""
    generator = torch.Generator().manual_seed(seed)
    shape = len(sequence.student_ids), WIDTH
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).requires_grad_()


def loss_of(logits: Tensor, arrays: ChunkArrays, **settings: object) -> Tensor:
    hidden = logits[torch.from_numpy(arrays.positions) + 1]
    return quotient_distillation(hidden, IDENTITY, ChunkTargets.of(arrays), global_count=1, **settings)[0]


def sequence_of(seed: int) -> ToySequence:
    return toy_sequence(sample_text(40, seed))


@pytest.mark.parametrize("path", [True, False])
@pytest.mark.parametrize("k", [1, 3, EVERY])
def test_forward_kl_and_its_gradient_are_those_of_the_written_out_formula(k: int, path: bool) -> None:
    sequence = sequence_of(seed=k)
    logits = random_logits(sequence, seed=k)
    expected = sum(
        forward_kl(events) for events in quotient_events(sequence, logits.log_softmax(-1), k, path=path)
    )
    found = loss_of(logits, sequence.arrays(k), path=path)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("divergence", ["reverse", "jsd"])
def test_other_divergences_are_of_the_same_completed_events(divergence: str) -> None:
    sequence = sequence_of(seed=9)
    logits = random_logits(sequence, seed=9)
    expected = torch.zeros((), dtype=torch.float64)
    for events in quotient_events(sequence, logits.log_softmax(-1), 3, path=False):
        teacher = complete(events)
        p = torch.stack([events.student[cell] for cell in teacher])
        q = torch.tensor(list(teacher.values()), dtype=torch.float64)
        if divergence == "reverse":
            expected = expected + (p * (p.log() - q.clamp_min(1e-12).log())).sum()
        else:
            middle = (p + q) / 2
            both = torch.xlogy(q, q) - q * middle.log() + p * (p.log() - middle.log())
            # Halves of both, divided by beta (1 - beta) = 1 / 4.
            expected = expected + 2 * both.sum()
    found = loss_of(logits, sequence.arrays(3), path=False, divergence=divergence)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_residual_compares_what_the_chunk_adds_to_its_cell() -> None:
    k = 2
    sequence = sequence_of(seed=5)
    logits = random_logits(sequence, seed=5)
    log_p = logits.log_softmax(-1)
    cuts = safe_cuts(sequence)
    expected = torch.zeros((), dtype=torch.float64)
    for index, cut in enumerate(cuts):
        shipped = named(sequence, k, cut.teacher)
        token = sequence.teacher_ids[cut.teacher]
        label = components(sequence.sides)[1][token]
        alone = [n for n in shipped if components(sequence.sides)[1][n] == label] == [token]
        lowest = len(shipped) > 1 and all(shipped[token] < shipped[n] for n in shipped if n != token)
        events = events_at(sequence, log_p, k, cut, without=label if alone and lowest else None)
        expected = expected + forward_kl(events)
        cell = observed(sequence, events, cut)
        if index + 1 == len(cuts) or cell is None:
            continue
        student, teacher = chunk_logs(sequence, log_p, k, cut, cuts[index + 1])
        s = events.student[cell].log() - student
        known, left = events.known[cell], 1 - sum(events.known.values())
        low, high = known, known + left * events.is_open[cell]
        if cell == -1:
            low = high = complete(events)[cell]
        bounds = [torch.tensor(mass).log() - teacher for mass in (low, high)]
        a = s.detach().clamp(*bounds).clamp_min(1e-6)
        expected = expected + a * (a.log() - s.clamp_min(1e-6).log()) - a + s.clamp_min(1e-6)
    found = loss_of(logits, sequence.arrays(k), path=False, residual_weight=1.0)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_gradient_of_a_head_with_bias_scale_and_soft_cap_in_small_chunks_of_rows() -> None:
    sequence = sequence_of(seed=3)
    targets = ChunkTargets.of(sequence.arrays(3))
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in ((len(targets.tokens), 6), (WIDTH, 6), (WIDTH,))
    )
    head = Head(weight, bias, scale=1.5, soft_cap=4.0)
    found = quotient_distillation(hidden, head, targets, global_count=7, chunk_rows=3)[0]
    dense = quotient_distillation(logits_of(hidden, head), IDENTITY, targets, global_count=7)[0]
    torch.testing.assert_close(found, dense)
    inputs = (hidden, weight, bias)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(dense, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_logits_may_be_shifted() -> None:
    sequence = sequence_of(seed=1)
    logits = random_logits(sequence, seed=1).detach()
    arrays = sequence.arrays(3)
    torch.testing.assert_close(loss_of(logits, arrays), loss_of(logits + 300.0, arrays))


def test_ids_of_either_vocabulary_may_be_permuted() -> None:
    text = sample_text(40, 2)
    sides = Tokens(STUDENT[::-1]), Tokens(TEACHER[3:] + TEACHER[:3])
    plain, permuted = toy_sequence(text), toy_sequence(text, sides)
    logits = random_logits(plain, seed=2)
    order = [*range(len(STUDENT) - 1, -1, -1), len(STUDENT)]
    torch.testing.assert_close(
        loss_of(logits[:, order], permuted.arrays(3)), loss_of(logits, plain.arrays(3))
    )


def test_sequences_of_one_batch_add_up_under_the_global_count() -> None:
    sequences = [sequence_of(seed) for seed in (11, 12)]
    logits = [random_logits(sequence, seed=4) for sequence in sequences]
    length = max(len(rows) for rows in logits)
    padded = torch.cat([torch.cat([rows, rows.new_zeros(length - len(rows), WIDTH)]) for rows in logits])
    parts = [sequence.arrays(k) for sequence, k in zip(sequences, (2, 5), strict=True)]
    arrays = joined([(part, row * length) for row, part in enumerate(parts)])
    separate = sum(loss_of(rows, part) for rows, part in zip(logits, parts, strict=True))
    torch.testing.assert_close(loss_of(padded, arrays), separate)


def test_untrained_tokens_have_no_gradient() -> None:
    sequence = sequence_of(seed=8)
    arrays = sequence.arrays(4)
    trained = torch.arange(len(sequence.student_ids)).numpy() >= 12
    logits = random_logits(sequence, seed=8)
    (gradient,) = torch.autograd.grad(loss_of(logits, sequence.arrays(4, trained)), logits)
    assert not gradient[:12].any()
    assert gradient[12:].any()
    assert arrays.cuts > sequence.arrays(4, trained).cuts


def test_a_batch_without_a_cut_gives_a_zero_connected_to_hidden_and_head() -> None:
    sequence = sequence_of(seed=8)
    nothing = sequence.arrays(4, torch.zeros(len(sequence.student_ids), dtype=torch.bool).numpy())
    # One column: the standing token alone.
    no_topk = sequence.arrays(0)
    assert no_topk.cuts == 0
    assert len(no_topk.positions) > 0
    assert no_topk.counts["cut_no_topk"] > 0
    for arrays in (nothing, no_topk):
        hidden = torch.ones(len(arrays.positions), 4, requires_grad=True)
        weight = torch.ones(WIDTH, 4, requires_grad=True)
        loss, metrics = quotient_distillation(hidden, Head(weight), ChunkTargets.of(arrays), global_count=5)
        assert float(loss.detach()) == 0.0
        assert float(metrics["cuts"]) == 0
        assert all(not gradient.any() for gradient in torch.autograd.grad(loss, (hidden, weight)))


@pytest.mark.parametrize("settings", [{}, {"path": False, "residual_weight": 1.0}, {"divergence": "reverse"}])
def test_one_column_and_a_student_that_is_certain_stay_finite(settings: dict[str, object]) -> None:
    sequence = sequence_of(seed=6)
    for dtype in (torch.float32, torch.float64):
        logits = random_logits(sequence, seed=6, scale=40.0).detach().to(dtype).requires_grad_()
        arrays = sequence.arrays(1)
        hidden = logits[torch.from_numpy(arrays.positions) + 1]
        head = Head(torch.eye(WIDTH, dtype=dtype))
        loss = quotient_distillation(hidden, head, ChunkTargets.of(arrays), global_count=1, **settings)[0]
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite()
        assert gradient.isfinite().all()
        assert float(loss.detach()) > 0


def test_metrics_are_sums_of_what_both_sides_leave_outside_of_the_cells() -> None:
    sequence = sequence_of(seed=7)
    logits = random_logits(sequence, seed=7)
    arrays = sequence.arrays(2)
    hidden = logits[torch.from_numpy(arrays.positions) + 1]
    metrics = quotient_distillation(hidden, IDENTITY, ChunkTargets.of(arrays), global_count=1)[1]
    cuts = safe_cuts(sequence)
    events = [events_at(sequence, logits.log_softmax(-1), 2, cut) for cut in cuts]
    captured = sum(sum(named(sequence, 2, cut.teacher).values()) for cut in cuts)
    listed = sum(sum(mass for cell, mass in one.known.items() if cell != -1) for one in events)
    tail = sum(float(one.student.get(-1, torch.zeros(())).detach()) for one in events)
    assert float(metrics["cuts"]) == len(cuts)
    assert float(metrics["captured_mass"]) == pytest.approx(captured)
    assert float(metrics["teacher_tail_mass"]) == pytest.approx(len(cuts) - listed)
    assert float(metrics["student_tail_mass"]) == pytest.approx(tail, abs=1e-9)


@pytest.mark.parametrize("settings", [{"residual_weight": 1.0}, {"divergence": "mixed"}])
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object]) -> None:
    arrays = sequence_of(seed=1).arrays(2)
    with pytest.raises(ConfigError) as caught:
        quotient_distillation(
            torch.zeros(len(arrays.positions), WIDTH),
            IDENTITY,
            ChunkTargets.of(arrays),
            global_count=1,
            **settings,
        )
    assert caught.value.code == "config.invalid"

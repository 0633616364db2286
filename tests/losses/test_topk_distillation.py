"""The tail KL against an independent dense float64 formula, and every way in which targets can be odd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses import topk_distillation_from_logits

VOCABULARY = 40


def dense_tail_kl(logits: Tensor, ids: list[list[int]], logprobs: list[list[float]]) -> Tensor:
    """Sum over rows of the KL on the listed tokens and their complement, written out in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for row, (row_ids, row_logprobs) in enumerate(zip(ids, logprobs, strict=True)):
        p = torch.softmax(logits[row].double(), -1)
        present = [(i, math.exp(lp)) for i, lp in zip(row_ids, row_logprobs, strict=True) if 0 <= i < len(p)]
        present = [(i, q) for i, q in present if q > 0]
        if not present:
            continue
        q_tail = max(0.0, 1.0 - sum(q for _, q in present))
        others = [j for j in range(len(p)) if j not in {i for i, _ in present}]
        for i, q in present:
            total = total + q * (math.log(q) - torch.log(p[i]))
        if q_tail > 0:
            total = total + q_tail * (math.log(q_tail) - torch.log(p[others].sum()))
    return total


def make_targets(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random distinct ids [N, K] and the float32 logprobs of a random teacher there."""
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(rows, VOCABULARY, generator=generator) * 2
    ids = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:columns] for _ in range(rows)])
    return ids, torch.log_softmax(teacher, -1).gather(-1, ids)


def make_logits(rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, VOCABULARY, generator=generator) * 3).requires_grad_()


def gradient(logits: Tensor, ids: Tensor, logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    loss, _ = topk_distillation_from_logits(leaf, ids, logprobs, global_count=count, check=True)
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def dense_gradient(logits: Tensor, ids: Tensor, logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().double().requires_grad_()
    loss = dense_tail_kl(leaf, ids.tolist(), logprobs.tolist()) / count
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("columns", [1, 5, 21])
def test_value_and_gradient_equal_a_dense_float64_formula(columns: int) -> None:
    ids, logprobs = make_targets(7, columns, seed=1)
    logits = make_logits(7, seed=2)
    loss, grad = gradient(logits, ids, logprobs, count=7)
    expected_loss, expected_grad = dense_gradient(logits, ids, logprobs, count=7)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad.double(), expected_grad, rtol=1e-6, atol=1e-6)


def test_float64_gradient_passes_gradcheck() -> None:
    ids, logprobs = make_targets(4, 6, seed=3)
    ids[1, 2], logprobs[2, 0] = -1, -torch.inf
    logits = make_logits(4, seed=4).detach().double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: topk_distillation_from_logits(x, ids, logprobs, global_count=4)[0], (logits,)
    )


def test_all_of_the_vocabulary_listed_is_the_full_kl() -> None:
    generator = torch.Generator().manual_seed(5)
    teacher = torch.log_softmax(torch.randn(3, VOCABULARY, generator=generator).double(), -1)
    logits = make_logits(3, seed=6)
    ids = torch.arange(VOCABULARY).expand(3, -1)
    loss, grad = gradient(logits, ids, teacher, count=3)
    student = torch.log_softmax(logits.detach().double(), -1)
    expected = (teacher.exp() * (teacher - student)).sum(-1).mean()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad.double(), (student.exp() - teacher.exp()) / 3, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tail_mass", [1e-3, 1e-6, 1e-9, 1e-12])
def test_gradient_on_a_small_student_tail_is_exact(tail_mass: float) -> None:
    columns, q_tail = 8, 0.01
    tail = math.log(tail_mass / (VOCABULARY - columns))
    head = math.log((1 - tail_mass) / columns)
    logits = torch.tensor([[head] * columns + [tail] * (VOCABULARY - columns)], dtype=torch.float32)
    ids = torch.arange(columns)[None]
    logprobs = torch.full((1, columns), math.log((1 - q_tail) / columns))
    loss, grad = gradient(logits, ids, logprobs, count=1)
    expected_loss, expected_grad = dense_gradient(logits, ids, logprobs, count=1)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(grad[:, columns:].double(), expected_grad[:, columns:], rtol=1e-5, atol=0)


def test_student_tail_below_the_smallest_float_counts_as_that_and_the_head_still_pulls_back() -> None:
    logits = torch.tensor([[0.0, -200.0, -201.0]])
    loss, grad = gradient(logits, torch.tensor([[0]]), torch.tensor([[math.log(0.9)]]), count=1)
    smallest = torch.finfo(torch.float32).tiny
    expected = 0.9 * math.log(0.9) + 0.1 * (math.log(0.1) - math.log(smallest))
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert grad[0].tolist() == pytest.approx([1.0 - 0.9, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("absent", [(-1, 0.0), (-1, -9999.0), (3, -9999.0), (3, -torch.inf), (-5, math.nan)])
def test_absent_columns_change_nothing_wherever_they_stand(absent: tuple[int, float]) -> None:
    ids, logprobs = make_targets(5, 6, seed=7)
    ids[ids == 3] = 39
    ids[:, 0] = torch.where((ids == 39).sum(-1) > 1, 38, ids[:, 0])
    logits = make_logits(5, seed=8)
    expected = gradient(logits, ids, logprobs, count=5)
    odd_id, odd_logprob = absent
    for at in (0, 3, 6):
        wide_ids = torch.cat([ids[:, :at], torch.full((5, 1), odd_id), ids[:, at:]], -1)
        wide_logprobs = torch.cat([logprobs[:, :at], torch.full((5, 1), odd_logprob), logprobs[:, at:]], -1)
        torch.testing.assert_close(gradient(logits, wide_ids, wide_logprobs, count=5), expected)


def test_padding_leaves_token_zero_in_the_tail() -> None:
    logits = torch.zeros(1, 4)
    _, grad = gradient(logits, torch.tensor([[2, -1]]), torch.tensor([[math.log(0.5), 0.0]]), count=1)
    assert grad[0, 0] == grad[0, 1] == grad[0, 3]


def test_ids_beyond_the_vocabulary_go_to_the_tail_and_are_counted() -> None:
    logits = make_logits(1, seed=9)
    ids, logprobs = torch.tensor([[5, VOCABULARY, 9]]), torch.tensor([[0.3, 0.2, 0.4]]).log()
    loss, metrics = topk_distillation_from_logits(logits, ids, logprobs, global_count=1)
    expected = dense_tail_kl(logits, [[5, 9]], [[math.log(0.3), math.log(0.4)]])
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    assert metrics["out_of_vocabulary"] == 1
    assert metrics["captured_mass"].item() == pytest.approx(0.7, abs=1e-6)


def test_rows_without_a_target_are_untrained_and_counted() -> None:
    ids, logprobs = make_targets(3, 4, seed=10)
    ids[1] = -1
    logits = make_logits(3, seed=11)
    loss, metrics = topk_distillation_from_logits(logits, ids, logprobs, global_count=2)
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad[1].any()
    assert (metrics["rows"], metrics["untrained_rows"]) == (2, 1)
    expected = dense_tail_kl(logits.detach(), ids.tolist(), logprobs.tolist()) / 2
    torch.testing.assert_close(loss.detach().double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_micro_batch_without_targets_gives_a_zero_connected_to_the_logits(rows: int) -> None:
    logits = make_logits(rows, seed=12)
    loss, _ = topk_distillation_from_logits(
        logits, torch.full((rows, 4), -1), torch.full((rows, 4), -9999.0), global_count=5
    )
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert not logits.grad.any()


def test_equal_teacher_and_student_give_zero_and_no_gradient() -> None:
    logits = make_logits(6, seed=13)
    ids, _ = make_targets(6, 10, seed=14)
    logprobs = torch.log_softmax(logits.detach().double(), -1).gather(-1, ids)
    loss, grad = gradient(logits, ids, logprobs, count=6)
    assert abs(loss) < 1e-6
    assert grad.abs().max() < 1e-6


def test_loss_is_never_negative() -> None:
    for seed in range(50):
        ids, logprobs = make_targets(8, 5, seed=seed)
        loss, _ = gradient(make_logits(8, seed=100 + seed), ids, logprobs, count=8)
        assert loss >= 0


def test_bfloat16_logits_are_accumulated_in_float32() -> None:
    ids, logprobs = make_targets(6, 8, seed=15)
    rounded = make_logits(6, seed=16).detach().bfloat16()
    loss, _ = topk_distillation_from_logits(rounded, ids, logprobs, global_count=6)
    expected = dense_tail_kl(rounded.float(), ids.tolist(), logprobs.tolist()) / 6
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


def test_losses_and_gradients_of_unequal_micro_batches_add_up() -> None:
    ids, logprobs = make_targets(9, 5, seed=17)
    ids[4:6] = -1
    logits = make_logits(9, seed=18)
    whole_loss, whole_grad = gradient(logits, ids, logprobs, count=7)
    parts = [slice(0, 2), slice(2, 6), slice(6, 9)]
    split = [gradient(logits[part], ids[part], logprobs[part], count=7) for part in parts]
    torch.testing.assert_close(sum(loss for loss, _ in split), whole_loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.cat([grad for _, grad in split]), whole_grad, rtol=1e-6, atol=1e-6)


def test_check_refuses_an_id_listed_twice() -> None:
    ids = torch.tensor([[1, 2], [4, 4]])
    with pytest.raises(LossError, match="row 1"):
        topk_distillation_from_logits(
            torch.zeros(2, 8), ids, torch.full((2, 2), -1.0), global_count=2, check=True
        )


def test_check_lets_absent_columns_repeat() -> None:
    ids = torch.tensor([[1, -1, -1]])
    topk_distillation_from_logits(
        torch.zeros(1, 8), ids, torch.full((1, 3), -1.0), global_count=1, check=True
    )

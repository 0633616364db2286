"""The objectives that people migrate from: their formulas, and where each goes wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.generalized_kl import generalized_kl
from atroposlib.losses.head import Head
from atroposlib.losses.teacher_renormalized_kl import teacher_renormalized_kl
from atroposlib.losses.truncated_kl import truncated_kl
from tests.support.dense_losses import VOCABULARY, Rule, columns_of, dense_topk, gradients, world


def of_probabilities(student: list[float]) -> tuple[Tensor, Head]:
    """Hidden states of one row and a head whose logits are the logs of these probabilities."""
    return torch.tensor([student]).log().requires_grad_(), Head(torch.eye(len(student)))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_truncated_kl_equals_its_formula(direction: Any, recompute: bool) -> None:
    at = world()
    log_p = torch.log_softmax(at.logits(), -1)
    rows = []
    for row, columns in zip(log_p, columns_of(at.ids, at.logprobs, VOCABULARY), strict=True):
        total = row.sum() * 0
        for i, lp in columns.items():
            log_student, log_teacher = row[i].clamp_min(-4.0), max(lp, -4.0)
            if direction == "forward":
                total = total + math.exp(log_teacher) * (log_teacher - log_student)
            else:
                total = total + log_student.exp() * (log_student - log_teacher)
        rows.append(total)
    expected = sum(row.clamp(0.0, 1.0) for row in rows) / 5
    got, metrics = truncated_kl(
        at.hidden,
        Head(at.weight, at.bias),
        at.ids,
        at.logprobs,
        direction=direction,
        min_logprob=-4.0,
        max_loss=1.0,
        global_count=5,
        chunk_rows=4,
        recompute=recompute,
    )
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(got, at.leaves), gradients(torch.as_tensor(expected), at.leaves))
    assert metrics["negative_rows"] == sum(row < 0 for row in rows)
    assert metrics["huge_rows"] == sum(row > 1.0 for row in rows) > 0


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_truncated_kl_is_zero_without_gradient_for_a_student_above_the_teacher(direction: Any) -> None:
    hidden, head = of_probabilities([0.9, 0.1])
    loss, metrics = truncated_kl(
        hidden,
        head,
        torch.tensor([[1]]) if direction == "reverse" else torch.tensor([[0]]),
        torch.tensor([[math.log(0.4 if direction == "reverse" else 0.6)]]),
        direction=direction,
        global_count=1,
    )
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert not hidden.grad.any()
    assert metrics["negative_rows"] == 1


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_generalized_kl_equals_its_formula_and_is_never_negative(direction: Any) -> None:
    at = world(1)
    log_p = torch.log_softmax(at.logits(), -1)
    total = log_p.sum() * 0
    for row, columns in zip(log_p, columns_of(at.ids, at.logprobs, VOCABULARY), strict=True):
        for i, lp in columns.items():
            p, q = row[i].exp(), math.exp(lp)
            term = p * (row[i] - lp) - p + q if direction == "reverse" else q * (lp - row[i]) - q + p
            assert term >= 0
            total = total + term
    got, _ = generalized_kl(
        at.hidden,
        Head(at.weight, at.bias),
        at.ids,
        at.logprobs,
        direction=direction,
        global_count=7,
        chunk_rows=2,
    )
    torch.testing.assert_close(got, total / 7, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(got, at.leaves), gradients(total / 7, at.leaves))


def test_generalized_kl_pulls_back_where_the_truncated_one_has_no_gradient() -> None:
    hidden, head = of_probabilities([0.9, 0.1])
    loss, _ = generalized_kl(
        hidden, head, torch.tensor([[0]]), torch.tensor([[math.log(0.6)]]), global_count=1
    )
    loss.backward()
    assert loss.item() == pytest.approx(0.9 * math.log(0.9 / 0.6) - 0.9 + 0.6, rel=1e-5)
    assert hidden.grad is not None
    assert hidden.grad[0, 0] > 0.01


def test_teacher_renormalized_kl_equals_its_formula() -> None:
    at = world(2)
    rule = Rule("forward", "zero_outside_topk", temperature=1.5)
    got, _ = teacher_renormalized_kl(
        at.hidden, Head(at.weight, at.bias), at.ids, at.logprobs, temperature=1.5, global_count=5
    )
    expected = dense_topk(at.logits(), at.ids, at.logprobs, rule) / 5
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(got, at.leaves), gradients(expected, at.leaves))


def test_teacher_renormalized_kl_pushes_a_student_that_equals_the_teacher() -> None:
    hidden, head = of_probabilities([0.5, 0.3, 0.2])
    loss, _ = teacher_renormalized_kl(
        hidden, head, torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.3]]).log(), global_count=1
    )
    loss.backward()
    assert hidden.grad is not None
    assert hidden.grad[0, 2].item() == pytest.approx(0.2, rel=1e-5), "the tail is driven out"


@pytest.mark.parametrize("loss", [truncated_kl, generalized_kl])
def test_a_direction_that_is_none_is_refused(loss: Any) -> None:
    at = world()
    with pytest.raises(ConfigError, match="direction: no such choice"):
        loss(at.hidden, Head(at.weight), at.ids, at.logprobs, direction="revers", global_count=9)

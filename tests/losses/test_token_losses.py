"""Losses of the token that stands in the text, against formulas of dense logits in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import ConfigError, LossError
from atroposlib.losses.head import Head
from atroposlib.losses.kl_estimator import kl_estimator
from atroposlib.losses.next_token import next_token_logprobs
from atroposlib.losses.policy_gradient import policy_gradient, reverse_kl_advantages
from tests.support.dense_losses import VOCABULARY, World, gradients, world

TOKENS = torch.tensor([3, 0, -1, 22, 7, -100, 3, 11, 5])
PRESENT = TOKENS >= 0
HEAD: dict[str, Any] = {"scale": 1.3, "soft_cap": 4.0}


def dense_logprobs(at: World, temperature: float = 1.0) -> Tensor:
    """[9] of TOKENS; 0 where there is none."""
    log_p = torch.log_softmax(at.logits(**HEAD) / temperature, -1)
    return torch.where(PRESENT, log_p.gather(-1, TOKENS.clamp_min(0)[:, None])[:, 0], 0.0)


def check(got: Tensor, expected: Tensor, leaves: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradients(got, leaves), gradients(expected, leaves), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("chunk_rows", [1, 4, None])
@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_next_token_logprobs_equal_log_softmax(temperature: float, chunk_rows: int | None) -> None:
    at = world()
    got = next_token_logprobs(
        at.hidden, Head(at.weight, at.bias, **HEAD), TOKENS, temperature=temperature, chunk_rows=chunk_rows
    )
    weights = torch.linspace(-1, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(got, dense_logprobs(at, temperature))
    check(got @ weights, dense_logprobs(at, temperature) @ weights, at.leaves)


def test_next_token_logprobs_refuse_an_id_beyond_the_head() -> None:
    at = world()
    with pytest.raises(LossError, match=r"row 1.*got 23.*below 23"):
        next_token_logprobs(at.hidden[:2], Head(at.weight), torch.tensor([3, VOCABULARY]))


def test_next_token_logprobs_refuse_another_number_of_ids() -> None:
    at = world()
    with pytest.raises(LossError, match=r"got \[8\].*expected \[9\]"):
        next_token_logprobs(at.hidden, Head(at.weight), TOKENS[:8])


def test_next_token_logprobs_of_no_token_are_zeros_connected_to_the_head() -> None:
    at = world()
    for hidden, ids in ((at.hidden, torch.full((9,), -1)), (at.hidden[:0], TOKENS[:0])):
        got = next_token_logprobs(hidden, Head(at.weight), ids).sum()
        assert got == 0
        assert not any(gradient.any() for gradient in torch.autograd.grad(got, (at.hidden, at.weight)))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_estimators_equal_their_formulas(kind: Any, recompute: bool) -> None:
    at = world(1)
    teacher = torch.linspace(-3.0, -0.1, 9, dtype=torch.float64)
    teacher[0], teacher[4] = -9999.0, math.nan
    kept = PRESENT & (teacher > -9999)
    gap = torch.where(kept, dense_logprobs(at) - teacher, 0.0)
    formulas = {"k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() - 1 + gap}
    sums = {name: torch.where(kept, value, 0.0).sum() for name, value in formulas.items()}
    got, metrics = kl_estimator(
        at.hidden,
        Head(at.weight, at.bias, **HEAD),
        TOKENS,
        teacher,
        kind=kind,
        global_count=4,
        chunk_rows=2,
        recompute=recompute,
    )
    check(got, sums[kind] / 4, at.leaves)
    for name, total in sums.items():
        torch.testing.assert_close(metrics[name], total.detach())
    assert (metrics["rows"], metrics["untrained_rows"]) == (5, 4)


def test_gradients_of_the_estimators_over_a_students_own_tokens_are_those_that_are_told() -> None:
    student = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    teacher = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)

    def expected_gradient(kind: Any) -> Tensor:
        """Over tokens drawn from the student: each token's gradient times its probability."""
        total = torch.zeros(3, dtype=torch.float64)
        for token in range(3):
            logits = student.log()[None].requires_grad_()
            loss, _ = kl_estimator(
                logits,
                Head(torch.eye(3, dtype=torch.float64)),
                torch.tensor([token]),
                teacher.log()[token : token + 1],
                kind=kind,
                global_count=1,
            )
            total += student[token] * torch.autograd.grad(loss, logits)[0][0]
        return total

    logits = student.log().requires_grad_()
    p = torch.softmax(logits, -1)
    (reverse,) = torch.autograd.grad((p * (p / teacher).log()).sum(), logits, retain_graph=True)
    (forward,) = torch.autograd.grad((teacher * (teacher / p).log()).sum(), logits)
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(expected_gradient("k2"), reverse)
    torch.testing.assert_close(expected_gradient("k3"), forward)


def test_k3_of_a_token_that_the_student_has_left_is_held_and_counted() -> None:
    logits = torch.tensor([[0.0, -200.0]], requires_grad=True)
    loss, metrics = kl_estimator(
        logits, Head(torch.eye(2)), torch.tensor([1]), torch.tensor([-0.1]), kind="k3", global_count=1
    )
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert metrics["bounded_rows"] == 1


ADVANTAGES = torch.tensor([1.0, -2.0, 9.0, 0.5, math.nan, 1.0, -1.0, 2.0, -0.3], dtype=torch.float64)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("clips", [(0.2, 0.2), (0.1, 0.5), (math.inf, math.inf)])
def test_policy_gradient_equals_its_formula(clips: tuple[float, float], recompute: bool) -> None:
    at = world(2)
    log_p = dense_logprobs(at, 1.2)
    sampled = (log_p + torch.linspace(-0.6, 0.6, 9, dtype=torch.float64)).detach().clamp_max(-0.01)
    sampled[7] = 1.0
    kept = PRESENT & ~ADVANTAGES.isnan() & (sampled <= 0)
    weights = torch.linspace(0.5, 1.0, 9, dtype=torch.float64)
    total, clipped = log_p.sum() * 0, 0
    for t in range(9):
        if kept[t]:
            ratio, gain = (log_p[t] - sampled[t]).exp(), float(ADVANTAGES[t])
            held = ratio.clamp(1 - clips[0], 1 + clips[1])
            total = total - weights[t] * torch.minimum(ratio * gain, held * gain)
            clipped += int(held * gain < ratio * gain)
    got, metrics = policy_gradient(
        at.hidden,
        Head(at.weight, at.bias, **HEAD),
        TOKENS,
        ADVANTAGES,
        sampled,
        clip_low=clips[0],
        clip_high=clips[1],
        row_weights=weights,
        temperature=1.2,
        global_count=6,
        chunk_rows=2,
        recompute=recompute,
    )
    check(got, total / 6, at.leaves)
    assert (metrics["rows"], metrics["untrained_rows"]) == (int(kept.sum()), 9 - int(kept.sum()))
    assert metrics["clipped_rows"] == clipped
    assert (clipped > 0) == math.isfinite(clips[0])


def test_policy_gradient_with_reverse_kl_advantages_is_the_gradient_of_the_reverse_kl() -> None:
    student = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    teacher = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    total = torch.zeros(3, dtype=torch.float64)
    for token in range(3):
        logits = student.log()[None].requires_grad_()
        sampled = student.log()[token : token + 1]
        loss, _ = policy_gradient(
            logits,
            Head(torch.eye(3, dtype=torch.float64)),
            torch.tensor([token]),
            reverse_kl_advantages(teacher.log()[token : token + 1], sampled),
            sampled,
            global_count=1,
        )
        total += student[token] * torch.autograd.grad(loss, logits)[0][0]
    logits = student.log().requires_grad_()
    p = torch.softmax(logits, -1)
    (expected,) = torch.autograd.grad((p * (p / teacher).log()).sum(), logits)
    torch.testing.assert_close(total, expected)


def test_reverse_kl_advantages_mix_a_reward_in_and_say_nothing_where_the_teacher_does_not() -> None:
    advantages = reverse_kl_advantages(
        torch.tensor([-1.0, -9999.0, math.nan, -30.0]),
        torch.tensor([-2.0, -1.0, -1.0, -1.0]),
        limit=5.0,
        reward=torch.tensor([10.0, 10.0, 10.0, 10.0]),
        reward_weight=0.5,
    )
    torch.testing.assert_close(
        advantages, torch.tensor([6.0, math.nan, math.nan, 0.0], dtype=torch.float64), equal_nan=True
    )


def test_a_negative_clip_is_refused() -> None:
    at = world()
    with pytest.raises(ConfigError, match="clip"):
        policy_gradient(
            at.hidden, Head(at.weight), TOKENS, ADVANTAGES, ADVANTAGES, clip_low=-0.1, global_count=1
        )


@pytest.mark.parametrize("loss", ["kl_estimator", "policy_gradient"])
def test_tokens_beyond_the_head_are_untrained_and_counted(loss: str) -> None:
    at = world()
    ids, logprobs = torch.tensor([3, VOCABULARY]), torch.tensor([-1.0, -1.0])
    hidden, head = at.hidden[:2].detach().requires_grad_(), Head(at.weight)
    value, metrics = (
        kl_estimator(hidden, head, ids, logprobs, global_count=1)
        if loss == "kl_estimator"
        else policy_gradient(hidden, head, ids, torch.ones(2), logprobs, global_count=1)
    )
    (gradient,) = torch.autograd.grad(value, hidden)
    assert (metrics["rows"], metrics["out_of_vocabulary"]) == (1, 1)
    assert not gradient[1].any()


@pytest.mark.parametrize("named", ["advantages", "sampled_logprobs", "row_weights"])
def test_one_number_for_all_rows_is_refused(named: str) -> None:
    at = world()
    values = {name: torch.full((9,), -1.0) for name in ("advantages", "sampled_logprobs", "row_weights")}
    values[named] = values[named][:1]
    with pytest.raises(LossError, match=named):
        policy_gradient(
            at.hidden, Head(at.weight), torch.zeros(9, dtype=torch.int64), global_count=9, **values
        )


def test_a_temperature_of_0_is_refused() -> None:
    at = world()
    with pytest.raises(ConfigError, match="temperature"):
        next_token_logprobs(at.hidden, Head(at.weight), torch.zeros(9, dtype=torch.int64), temperature=0.0)


def test_an_estimator_that_is_none_is_refused() -> None:
    at = world()
    with pytest.raises(ConfigError, match="kind: no such choice"):
        kl_estimator(at.hidden, Head(at.weight), at.ids[:, 2], at.logprobs[:, 2], kind="k4", global_count=9)

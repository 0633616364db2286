"""Every divergence on every support against formulas written out in float64, by all ways to compute it."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.divergences import Events, jsd
from atroposlib.losses.head import Head
from atroposlib.losses.topk_distillation import topk_distillation, topk_distillation_from_logits
from tests.support.dense_losses import VOCABULARY, Rule, World, dense_topk, gradients, world

RULES = [
    Rule(divergence, support, mixed_weight=0.3, beta=0.3)
    for support in ("tail", "renormalized", "zero_outside_topk")
    for divergence in ("forward", "reverse", "mixed", "jsd")
    if (divergence, support) != ("jsd", "zero_outside_topk")
]
HEADS: list[dict[str, Any]] = [{}, {"scale": 1.4}, {"scale": 0.7, "soft_cap": 3.0}]


def from_hidden(
    at: World, rule: Rule, head: dict[str, Any], *, recompute: bool = False, **more: Any
) -> Tensor:
    return topk_distillation(
        at.hidden,
        Head(at.weight, at.bias, **head),
        at.ids,
        at.logprobs,
        global_count=5,
        chunk_rows=4,
        recompute=recompute,
        **asdict(rule),
        **more,
    )[0]


def from_logits(at: World, rule: Rule, head: dict[str, Any], **more: Any) -> Tensor:
    return topk_distillation_from_logits(
        at.logits(**head), at.ids, at.logprobs, global_count=5, chunk_rows=4, **asdict(rule), **more
    )[0]


WAYS = {
    "gradient in forward": from_hidden,
    "recompute": partial(from_hidden, recompute=True),
    "logits": from_logits,
}


def check_every_way(
    at: World, rule: Rule, expected: Tensor, head: dict[str, Any] | None = None, **more: Any
) -> None:
    expected_gradients = gradients(expected, at.leaves)
    for name, way in WAYS.items():
        got = way(at, rule, head or {}, **more)
        torch.testing.assert_close(
            (got, *gradients(got, at.leaves)),
            (expected, *expected_gradients),
            rtol=1e-9,
            atol=1e-10,
            msg=lambda told, name=name: f"{name}: {told}",
        )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.support}-{rule.divergence}")
def test_value_and_gradients_equal_the_formula(rule: Rule) -> None:
    at = world()
    for head in HEADS:
        check_every_way(at, rule, dense_topk(at.logits(**head), at.ids, at.logprobs, rule) / 5, head)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("forward", "tail", temperature=1.7, teacher_temperature=1.7),
        Rule("mixed", "renormalized", temperature=0.6),
        Rule("reverse", "renormalized", temperature=2.0, teacher_temperature=1.5),
        Rule("reverse", "zero_outside_topk", temperature=1.5),
    ],
    ids=lambda rule: f"{rule.support}-{rule.temperature}",
)
def test_temperature_divides_logits_and_multiplies_the_loss_by_its_square(rule: Rule) -> None:
    at = world()
    head = {"scale": 1.2, "soft_cap": 4.0}
    check_every_way(at, rule, dense_topk(at.logits(**head), at.ids, at.logprobs, rule) / 5, head)


@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
def test_gradcheck(divergence: str) -> None:
    at = world(1)

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        moved = World(hidden, weight, bias, at.ids, at.logprobs)
        return from_hidden(moved, Rule(divergence), {"soft_cap": 3.0}, recompute=True)

    assert torch.autograd.gradcheck(loss, at.leaves, fast_mode=True)


@pytest.mark.parametrize("rule", RULES[:6], ids=lambda rule: f"{rule.support}-{rule.divergence}")
def test_masked_ids_leave_both_distributions(rule: Rule) -> None:
    at = world(2)
    # One that some rows list, one that none does, one beyond the head, and a repetition.
    seldom = int(at.ids[0, 0])
    unlisted = next(i for i in range(VOCABULARY) if not (at.ids == i).any())
    masked = torch.tensor([seldom, unlisted, VOCABULARY + 9, seldom])
    expected = dense_topk(at.logits(), at.ids, at.logprobs, rule, {seldom, unlisted}) / 5
    check_every_way(at, rule, expected, masked_ids=masked)


def test_a_row_whose_masked_ids_hold_nearly_all_of_the_teacher_is_untrained_and_counted() -> None:
    logits = torch.zeros(2, 6, requires_grad=True)
    ids = torch.tensor([[1, 2], [1, 3]])
    logprobs = torch.tensor([[1 - 1e-6, 1e-7], [0.5, 0.3]]).log()
    loss, metrics = topk_distillation_from_logits(
        logits, ids, logprobs, masked_ids=torch.tensor([1]), global_count=2
    )
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad[0].any()
    assert logits.grad[1].any()
    assert (metrics["rows"], metrics["untrained_rows"]) == (1, 1)
    assert metrics["masked_mass"].item() == pytest.approx(1.5, abs=1e-5)


@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
def test_extra_columns_join_and_those_listed_already_are_passed_over(divergence: str) -> None:
    at = world(3)
    extra = torch.stack([torch.tensor([int(row[2]), int(row.max()) % 22 + 1, 21]) for row in at.ids])
    extra[4] = torch.tensor([3, 3, -1])
    extra_logprobs = torch.full(extra.shape, math.log(0.004), dtype=torch.float64)
    extra_logprobs[6, 1] = math.nan
    union_ids, union_logprobs = at.ids.clone(), at.logprobs.clone()
    for column in range(3):
        ids, logprobs = extra[:, column].clone(), extra_logprobs[:, column].nan_to_num(-9999.0)
        ids[((union_ids == ids[:, None]) & (union_logprobs > -9999)).any(-1)] = -1
        union_ids = torch.cat([union_ids, ids[:, None]], -1)
        union_logprobs = torch.cat([union_logprobs, logprobs[:, None]], -1)
    rule = Rule(divergence, beta=0.7)
    expected = dense_topk(at.logits(), union_ids, union_logprobs, rule) / 5
    check_every_way(at, rule, expected, extra_ids=extra, extra_logprobs=extra_logprobs)


def test_row_weights_multiply_rows() -> None:
    at = world(4)
    weights = torch.linspace(0.0, 2.0, 9, dtype=torch.float64)
    logits = at.logits()
    rows = [
        dense_topk(logits[row : row + 1], at.ids[row : row + 1], at.logprobs[row : row + 1], Rule())
        for row in range(9)
    ]
    check_every_way(at, Rule(), torch.stack(rows) @ weights / 5, row_weights=weights)


@pytest.mark.parametrize("divergence", ["forward", "reverse"])
def test_all_of_the_vocabulary_listed_is_the_divergence_over_it(divergence: str) -> None:
    at = world(5)
    teacher = torch.log_softmax(torch.randn(9, VOCABULARY, dtype=torch.float64), -1)
    at = World(*at.leaves, torch.arange(VOCABULARY).expand(9, -1), teacher)
    q, p = teacher.exp(), torch.softmax(at.logits(), -1)
    first, second = (q, p) if divergence == "forward" else (p, q)
    check_every_way(at, Rule(divergence), (first * (first / second).log()).sum() / 5)


def test_jsd_tends_to_the_two_kls_at_the_ends_of_beta() -> None:
    at, head = world(6), {"scale": 0.2}
    for end, divergence in ((0.0, "forward"), (1.0, "reverse")):
        limit = dense_topk(at.logits(**head), at.ids, at.logprobs, Rule(divergence)) / 5
        limit_gradients = gradients(limit, at.leaves)
        for distance in (1e-3, 1e-5, 1e-7, 0.0):
            near = from_hidden(at, Rule("jsd", beta=abs(end - distance)), head)
            torch.testing.assert_close(near, limit, rtol=50 * distance, atol=1e-8)
            torch.testing.assert_close(
                gradients(near, at.leaves), limit_gradients, rtol=0.0, atol=100 * distance + 1e-7
            )


def test_jsd_has_the_curvature_of_the_kl_for_every_beta() -> None:
    q = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    p = q + 1e-4 * torch.tensor([[1.0, -3.0, 2.0]], dtype=torch.float64)
    chi = ((p - q) ** 2 / q).sum() / 2
    for beta in (0.0, 0.01, 0.5, 0.9, 1.0):
        value = jsd(Events(q, q.log(), p, p.log()), beta)[0]
        assert value.item() == pytest.approx(chi.item(), rel=2e-3)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**20),
    columns=st.integers(1, 11),
    spread=st.floats(0.1, 12.0),
    divergence=st.sampled_from(["forward", "reverse", "mixed", "jsd"]),
)
def test_with_a_tail_a_row_is_never_negative_and_blind_to_the_order_of_columns(
    seed: int, columns: int, spread: float, divergence: str
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits, teacher = spread * torch.randn(2, 4, 12, generator=draw, dtype=torch.float64)
    ids = torch.stack([torch.randperm(12, generator=draw)[:columns] for _ in range(4)])
    logprobs = torch.log_softmax(teacher, -1).gather(-1, ids)
    order = torch.randperm(columns, generator=draw)
    for row in range(4):
        at = slice(row, row + 1)
        value, turned = (
            topk_distillation_from_logits(
                logits[at], ids[at, to], logprobs[at, to], divergence=divergence, global_count=1
            )[0]
            for to in (torch.arange(columns), order)
        )
        assert value >= -1e-12
        torch.testing.assert_close(value, turned, rtol=1e-9, atol=1e-12)


def test_reverse_kl_of_a_student_above_the_teacher_pulls_it_back_instead_of_letting_it_collapse() -> None:
    # The toy case of the truncated reverse KL: .9 log(.9/.6) less 1 - .9 + ... goes negative without a tail.
    logits = torch.tensor([[0.9, 0.1]]).log().requires_grad_()
    for divergence in ("forward", "reverse", "jsd"):
        loss, _ = topk_distillation_from_logits(
            logits,
            torch.tensor([[0]]),
            torch.tensor([[math.log(0.6)]]),
            divergence=divergence,
            global_count=1,
        )
        assert loss > 0.01
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient[0, 0] > 0.01, "a step must lower what stands above the teacher"
    reverse, _ = topk_distillation_from_logits(
        logits, torch.tensor([[0]]), torch.tensor([[math.log(0.6)]]), divergence="reverse", global_count=1
    )
    assert reverse.item() == pytest.approx(0.9 * math.log(1.5) + 0.1 * math.log(0.25), rel=1e-6)


def test_reverse_kl_stays_finite_where_the_teacher_listed_all_of_its_mass() -> None:
    logits = torch.zeros(1, 5, requires_grad=True)
    loss, _ = topk_distillation_from_logits(
        logits, torch.tensor([[1, 2]]), torch.tensor([[0.5, 0.5]]).log(), divergence="reverse", global_count=1
    )
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[0, [0, 3, 4]] > 0).all(), "what lies outside of the teacher's mass must fall"


def test_metrics_are_sums_over_rows() -> None:
    at = world(7)
    _, metrics = topk_distillation(
        at.hidden, Head(at.weight, at.bias), at.ids, at.logprobs, global_count=5, chunk_rows=2
    )
    p = torch.softmax(at.logits(), -1).detach()
    present = (at.ids >= 0) & (at.ids < VOCABULARY) & (at.logprobs > -9999)
    student = torch.where(present, p.gather(-1, at.ids.clamp(0, VOCABULARY - 1)), 0.0).sum()
    teacher = torch.where(present, at.logprobs.exp(), 0.0).sum()
    top = p.argmax(-1)
    overlap = ((at.ids == top[:, None]) & present).any(-1).sum()
    torch.testing.assert_close(metrics["student_mass"], student)
    torch.testing.assert_close(metrics["captured_mass"], teacher)
    assert metrics["overlap"] == overlap
    assert (metrics["rows"], metrics["untrained_rows"], metrics["out_of_vocabulary"]) == (8, 1, 1)


def test_a_row_of_one_renormalized_column_teaches_nothing_and_is_counted() -> None:
    logits = torch.randn(2, 7, generator=torch.Generator().manual_seed(8)).requires_grad_()
    loss, metrics = topk_distillation_from_logits(
        logits,
        torch.tensor([[1, -1], [2, 3]]),
        torch.tensor([[-0.5, 0.0], [-1.0, -2.0]]),
        support="renormalized",
        global_count=2,
    )
    loss.backward()
    assert logits.grad is not None
    assert metrics["one_column_rows"] == 1
    assert logits.grad[0].abs().max() < 1e-6
    assert logits.grad[1].abs().max() > 1e-3


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"temperature": 2.0}, "teacher_temperature"),
        ({"teacher_temperature": 2.0}, "another temperature"),
        ({"support": "renormalized"}, "at least two columns"),
        ({"support": "zero_outside_topk", "divergence": "jsd"}, "no JSD"),
        ({"beta": 1.5}, "beta"),
        ({"mixed_weight": -0.1}, "mixed_weight"),
        ({"divergence": "revers"}, "divergence: no such choice"),
        ({"support": "tails"}, "support: no such choice"),
        ({"temperature": 0.0, "teacher_temperature": 0.0}, "above 0"),
        ({"temperature": -1.0, "teacher_temperature": -1.0}, "above 0"),
        ({"support": "renormalized", "teacher_temperature": 0.0}, "teacher_temperature: a temperature"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        topk_distillation_from_logits(
            torch.zeros(1, 5), torch.tensor([[1]]), torch.tensor([[-0.5]]), global_count=1, **settings
        )


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="divergance"):
        topk_distillation_from_logits(
            torch.zeros(1, 5),
            torch.tensor([[1]]),
            torch.tensor([[-0.5]]),
            global_count=1,
            divergance="reverse",
        )

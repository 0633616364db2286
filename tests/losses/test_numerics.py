"""Rounding, splits and empty inputs: what decides whether a loss of hidden states is right at scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.generalized_kl import generalized_kl
from atroposlib.losses.head import Head
from atroposlib.losses.kl_estimator import kl_estimator
from atroposlib.losses.linear import CHUNK_BYTES, logits_of, rows_of_a_chunk
from atroposlib.losses.policy_gradient import policy_gradient
from atroposlib.losses.teacher_renormalized_kl import teacher_renormalized_kl
from atroposlib.losses.topk_distillation import topk_distillation
from atroposlib.losses.truncated_kl import truncated_kl
from tests.support.dense_losses import Rule, World, dense_topk, world

TAIL_MASSES = [1e-3, 1e-6, 1e-9, 1e-12]


def first_column(loss: Callable[..., Any]) -> Callable[..., Any]:
    def of_columns(hidden: Tensor, head: Head, ids: Tensor, logprobs: Tensor, **settings: Any) -> Any:
        return loss(hidden, head, ids[:, 2], logprobs[:, 2], **settings)

    return of_columns


def on_policy(hidden: Tensor, head: Head, ids: Tensor, logprobs: Tensor, **settings: Any) -> Any:
    return policy_gradient(hidden, head, ids[:, 2], 1.0 + logprobs[:, 2], logprobs[:, 2] * 1.1, **settings)


LOSSES: dict[str, Callable[..., Any]] = {
    "topk_distillation": topk_distillation,
    "truncated_kl": truncated_kl,
    "generalized_kl": generalized_kl,
    "teacher_renormalized_kl": teacher_renormalized_kl,
    "kl_estimator": first_column(kl_estimator),
    "policy_gradient": on_policy,
}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_unequal_micro_batches_add_up_whatever_the_count(name: str, recompute: bool) -> None:
    at = world(1)
    # 13 differs from the number of trained rows of the whole and of every part.
    whole, metrics = run(LOSSES[name], at, slice(0, 9), recompute)
    for cuts in ([0, 4, 5, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]):
        parts = [run(LOSSES[name], at, slice(a, b), recompute) for a, b in pairwise(cuts)]
        for index, expected in enumerate(whole):
            torch.testing.assert_close(sum(part[index] for part, _ in parts), expected, rtol=1e-9, atol=1e-12)
        for key, value in metrics.items():
            torch.testing.assert_close(
                sum(part[key] for _, part in parts), value, rtol=1e-9, atol=1e-12, check_dtype=False
            )


def run(
    loss: Callable[..., Any], at: World, rows: slice, recompute: bool
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Loss and gradients of some rows; metrics."""
    value, metrics = loss(
        at.hidden[rows],
        Head(at.weight, at.bias),
        at.ids[rows],
        at.logprobs[rows],
        global_count=13,
        recompute=recompute,
    )
    return (value.detach(), *torch.autograd.grad(value, at.leaves)), metrics


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_nothing_to_train_is_a_zero_connected_to_hidden_states_and_head(
    name: str, rows: int, recompute: bool
) -> None:
    at = world()
    value, metrics = LOSSES[name](
        at.hidden[:rows],
        Head(at.weight, at.bias),
        torch.full((rows, 5), -1),
        torch.full((rows, 5), -9999.0),
        global_count=4,
        recompute=recompute,
    )
    assert value == 0
    for gradient in torch.autograd.grad(value, at.leaves):
        assert not gradient.any()
    _, usual = LOSSES[name](
        at.hidden, Head(at.weight, at.bias), at.ids, at.logprobs, global_count=4, recompute=recompute
    )
    assert metrics.keys() == usual.keys(), "sums over micro-batches need the same names in each"
    assert metrics["untrained_rows"] == rows


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_without_any_row_is_0_not_0_over_0(name: str) -> None:
    at = world()
    value, _ = LOSSES[name](
        at.hidden,
        Head(at.weight, at.bias),
        torch.full((9, 5), -1),
        at.logprobs,
        global_count=0,
    )
    assert value == 0
    assert not any(gradient.any() for gradient in torch.autograd.grad(value, at.leaves))


@pytest.mark.parametrize("support", ["tail", "renormalized"])
@pytest.mark.parametrize("recompute", [False, True])
def test_no_columns_at_all_are_no_target(support: str, recompute: bool) -> None:
    at = world()
    nothing = torch.empty(9, 0)
    value, metrics = topk_distillation(
        at.hidden,
        Head(at.weight, at.bias),
        nothing.long(),
        nothing,
        support=support,
        global_count=3,
        recompute=recompute,
    )
    assert value == 0
    assert metrics["untrained_rows"] == 9
    assert not any(gradient.any() for gradient in torch.autograd.grad(value, at.leaves))


@pytest.mark.parametrize("tail_mass", TAIL_MASSES)
@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
def test_float32_gradient_on_a_small_student_tail_is_exact(divergence: str, tail_mass: float) -> None:
    columns, vocabulary = 4, 40
    p = [(1 - tail_mass) / columns] * columns + [tail_mass / (vocabulary - columns)] * (vocabulary - columns)
    exact = torch.tensor([p], dtype=torch.float64).log()
    ids, logprobs = torch.arange(columns)[None], torch.full((1, columns), math.log(0.99 / columns))
    wide = exact.requires_grad_()
    (expected,) = torch.autograd.grad(dense_topk(wide, ids, logprobs.double(), Rule(divergence)), wide)
    hidden = exact.detach().float().requires_grad_()
    loss, _ = topk_distillation(
        hidden, Head(torch.eye(vocabulary)), ids, logprobs, divergence=divergence, global_count=1
    )
    (got,) = torch.autograd.grad(loss, hidden)
    torch.testing.assert_close(got[:, columns:].double(), expected[:, columns:], rtol=2e-5, atol=1e-30)


def test_bfloat16_head_is_read_in_float32() -> None:
    draw = torch.Generator().manual_seed(2)
    hidden, weight = (torch.randn(*shape, generator=draw).bfloat16() for shape in ((12, 32), (200, 32)))
    ids = torch.stack([torch.randperm(200, generator=draw)[:6] for _ in range(12)])
    logprobs = torch.log_softmax(torch.randn(12, 7, generator=draw), -1)[:, :6]
    loss, _ = topk_distillation(hidden, Head(weight), ids, logprobs, global_count=12)
    expected = dense_topk(hidden.double() @ weight.double().T, ids, logprobs.double(), Rule()) / 12
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_head_s_gradient_is_summed_over_chunks_in_float32_though_it_is_bfloat16(recompute: bool) -> None:
    draw = torch.Generator().manual_seed(3)
    rows, vocabulary = 512, 50
    hidden = (torch.randn(rows, 16, generator=draw) + 1.0).bfloat16().requires_grad_()
    weight = torch.randn(vocabulary, 16, generator=draw).bfloat16().requires_grad_()
    ids = torch.stack([torch.randperm(vocabulary, generator=draw)[:3] for _ in range(rows)])
    logprobs = torch.full((rows, 3), math.log(0.3))

    def head_gradient(chunk_rows: int) -> Tensor:
        loss, _ = topk_distillation(
            hidden, Head(weight), ids, logprobs, global_count=rows, chunk_rows=chunk_rows, recompute=recompute
        )
        (gradient,) = torch.autograd.grad(loss, weight)
        assert gradient.dtype == torch.bfloat16
        return gradient.float()

    whole, in_chunks = head_gradient(rows), head_gradient(4)
    # Rounded once at the end (2^-9 of each entry), not once a chunk.
    assert (in_chunks - whole).norm() / whole.norm() < 2e-3


def narrow_problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states [64, 16] and weight [50, 16] whose numbers bfloat16 has; ids and logprobs [64, 3]."""
    draw = torch.Generator().manual_seed(6)
    hidden, weight = (
        torch.randn(*shape, generator=draw).bfloat16().float() for shape in ((64, 16), (50, 16))
    )
    ids = torch.stack([torch.randperm(50, generator=draw)[:3] for _ in range(64)])
    return hidden.requires_grad_(), weight.requires_grad_(), ids, torch.full((64, 3), math.log(0.3))


@pytest.mark.parametrize("recompute", [False, True])
def test_the_count_is_divided_by_before_a_gradient_is_rounded(recompute: bool) -> None:
    hidden, weight, ids, logprobs = narrow_problem()
    count = 3  # bfloat16's nearest number to a third is 0.2 % off

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in (hidden, weight)]
        loss, _ = topk_distillation(
            leaves[0], Head(leaves[1]), ids, logprobs, global_count=count, recompute=recompute
        )
        return [gradient.float() for gradient in torch.autograd.grad(loss, leaves)]

    for got, right in zip(gradients(torch.bfloat16), gradients(torch.float32), strict=True):
        assert abs((got * right).sum() / right.square().sum() - 1) < 4e-4


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("of_hidden", "of_weight"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_hidden_states_and_head_of_unlike_types(
    of_hidden: torch.dtype, of_weight: torch.dtype, recompute: bool
) -> None:
    hidden, weight, ids, logprobs = narrow_problem()
    leaves = [hidden.detach().to(of_hidden).requires_grad_(), weight.detach().to(of_weight).requires_grad_()]
    values = []
    for states, head in ((hidden, weight), leaves):
        loss, _ = topk_distillation(
            states, Head(head), ids, logprobs, global_count=64, recompute=recompute, chunk_rows=9
        )
        values.append((loss.detach(), *torch.autograd.grad(loss, (states, head))))
    assert [gradient.dtype for gradient in values[1][1:]] == [of_hidden, of_weight]
    for right, got in zip(*values, strict=True):
        assert (got - right).norm() / right.norm() < 3e-3
    assert values[0][0] == values[1][0]


def test_autocast_does_not_round_the_logits() -> None:
    hidden, weight, ids, logprobs = narrow_problem()
    head = Head(weight)
    expected, _ = topk_distillation(hidden, head, ids, logprobs, global_count=64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = topk_distillation(hidden, head, ids, logprobs, global_count=64)
        logits = logits_of(hidden, head)
    assert loss == expected
    assert torch.equal(logits, logits_of(hidden, head))


def test_logits_of_bfloat16_states_are_not_rounded_to_it() -> None:
    hidden, weight, *_ = narrow_problem()
    narrow = [leaf.detach().bfloat16().requires_grad_() for leaf in (hidden, weight)]
    logits, right = logits_of(narrow[0], Head(narrow[1])), hidden @ weight.T
    torch.testing.assert_close(logits, right)
    gradients = torch.autograd.grad(logits.square().sum(), narrow)
    for got, expected in zip(
        gradients, torch.autograd.grad(right.square().sum(), (hidden, weight)), strict=True
    ):
        assert got.dtype == torch.bfloat16
        assert (got.float() - expected).norm() / expected.norm() < 3e-3


def test_a_chunk_is_as_many_rows_as_its_buffer_holds() -> None:
    weight = torch.empty(49_152, 2)
    assert rows_of_a_chunk(weight, torch.empty(1, 2)) == CHUNK_BYTES["cpu"] // (49_152 * 4)
    assert rows_of_a_chunk(weight, torch.empty(1, 2, dtype=torch.bfloat16)) == CHUNK_BYTES["cpu"] // (
        49_152 * 4
    )
    assert rows_of_a_chunk(weight, torch.empty(1, 2, dtype=torch.float64)) == CHUNK_BYTES["cpu"] // (
        49_152 * 8
    )


@pytest.mark.parametrize("chunk_rows", [1, 3, 9, 100, None])
def test_the_size_of_a_chunk_changes_nothing(chunk_rows: int | None) -> None:
    at = world(4)
    values = []
    for size in (2, chunk_rows):
        loss, _ = topk_distillation(
            at.hidden, Head(at.weight, at.bias), at.ids, at.logprobs, global_count=5, chunk_rows=size
        )
        values.append((loss.detach(), *torch.autograd.grad(loss, at.leaves)))
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-13)


def test_only_what_needs_a_gradient_gets_one() -> None:
    at = world(5)
    weight = at.weight.detach()
    loss, _ = topk_distillation(at.hidden, Head(weight), at.ids, at.logprobs, global_count=5)
    torch.autograd.grad(loss, at.hidden)
    loss, _ = topk_distillation(at.hidden.detach(), Head(weight), at.ids, at.logprobs, global_count=5)
    assert not loss.requires_grad


def test_rows_that_do_not_fit_are_refused() -> None:
    at = world()
    with pytest.raises(LossError, match="rows"):
        topk_distillation(at.hidden[:8], Head(at.weight), at.ids, at.logprobs, global_count=5)
    with pytest.raises(LossError, match="alike"):
        topk_distillation(at.hidden, Head(at.weight), at.ids, at.logprobs[:, :4], global_count=5)
    for shape in [(3,), (9, 1)]:
        with pytest.raises(LossError, match="row_weights"):
            topk_distillation(
                at.hidden, Head(at.weight), at.ids, at.logprobs, global_count=5, row_weights=torch.ones(shape)
            )
    with pytest.raises(LossError, match="together"):
        topk_distillation(at.hidden, Head(at.weight), at.ids, at.logprobs, global_count=5, extra_ids=at.ids)

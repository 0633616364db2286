"""Losses from hidden states and head in chunks against the same losses from whole logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses import linear
from atroposlib.losses.compatible.clipped_pg import ClippedPGLossFn
from atroposlib.losses.compatible.dpo import DPOLossFn
from atroposlib.losses.compatible.interfaces import LossFunction
from atroposlib.losses.compatible.nll import NLLLossFn
from atroposlib.losses.compatible.prepare import prepare_loss_input
from atroposlib.losses.head import Head

B, T, H, V = 4, 7, 5, 23
COUNTS = {"global_valid_seqs": torch.tensor(6.0), "global_valid_toks": torch.tensor(31.0)}
LOSSES: dict[str, Callable[[bool], LossFunction]] = {
    "nll": NLLLossFn,
    "dpo": partial(DPOLossFn, {"sft_loss_weight": 0.2}),
    "clipped_pg": partial(ClippedPGLossFn, {"token_level_loss": False}),
}


def make_batch() -> tuple[list[Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    leaves = [normal(B, T, H).requires_grad_(), normal(V, H).requires_grad_(), normal(V).requires_grad_()]
    data = {
        "input_ids": torch.randint(0, V, (B, T), generator=generator),
        "token_mask": (torch.rand(B, T, generator=generator) < 0.7).long(),
        "sample_mask": torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        "advantages": normal(B, T),
    }
    for name in ("prev_logprobs", "generation_logprobs", "reference_policy_logprobs"):
        data[name] = -normal(B, T).abs() - 2
    return leaves, data


def outcome(name: str, leaves: list[Tensor], data: dict[str, Any], fused: bool) -> list[Tensor]:
    hidden, weight, bias = leaves
    loss_fn = LOSSES[name](fused)
    head = Head(weight, bias, scale=1.5, soft_cap=4.0)
    if fused:
        inputs = prepare_loss_input(hidden, data, loss_fn, head=head)
    else:
        inputs = prepare_loss_input(linear.logits_of(hidden, head), data, loss_fn)
    loss, _ = loss_fn(data=data, **COUNTS, **inputs)
    return [loss, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradients_are_equal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linear.CHUNK_BYTES, "cpu", 3 * V * 8)  # three rows a chunk
    leaves, data = make_batch()
    whole, fused = (outcome(name, leaves, data, is_fused) for is_fused in (False, True))
    for expected, got in zip(whole, fused, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


def test_untrained_tokens_reach_no_matrix_product() -> None:
    leaves, data = make_batch()
    data["input_ids"][0, 3], data["token_mask"][0, 3] = V + 100, 0  # beyond the head: it would be refused
    assert torch.isfinite(outcome("nll", leaves, data, fused=True)[0])


def test_a_batch_without_a_trained_token_keeps_hidden_and_head_in_the_graph() -> None:
    leaves, data = make_batch()
    data["token_mask"] *= 0
    for name in LOSSES:
        loss, *gradients = outcome(name, leaves, data, fused=True)
        assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
        assert torch.isfinite(loss)


@pytest.mark.parametrize("name", LOSSES)
def test_without_a_head_hidden_states_are_not_taken_for_logits(name: str) -> None:
    (hidden, *_), data = make_batch()
    with pytest.raises(LossError, match="pass hidden states and head="):
        prepare_loss_input(hidden, data, LOSSES[name](True))


@pytest.mark.parametrize("fused", [False, True])
def test_a_trained_token_beyond_the_head_is_refused_by_its_place(fused: bool) -> None:
    leaves, data = make_batch()
    data["input_ids"][1, 4], data["token_mask"][1, 4] = V, 1
    with pytest.raises(LossError, match="row 1, token 4: a trained token lies beyond"):
        outcome("nll", leaves, data, fused)

"""Rows that are added to a head so that ranks share it equally are no tokens."""

from __future__ import annotations

import pytest
import torch

from atroposlib.losses.head import Head
from atroposlib.losses.linear import logits_of
from atroposlib.losses.next_token import next_token_logprobs
from atroposlib.losses.topk_distillation import topk_distillation

TOKENS, PADDED = 21, 24


def heads() -> tuple[Head, Head]:
    """A head of 21 rows, and the same with three more."""
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(TOKENS, 5, generator=draw, dtype=torch.float64)
    more = torch.randn(PADDED - TOKENS, 5, generator=draw, dtype=torch.float64)
    padded = torch.cat([weight, more]).requires_grad_()
    return Head(weight.requires_grad_(), soft_cap=2.0), Head(padded, soft_cap=2.0, vocabulary=TOKENS)


@pytest.mark.parametrize("listed", [4, TOKENS])
def test_value_and_gradient_are_those_without_them(listed: int) -> None:
    draw = torch.Generator().manual_seed(5)
    hidden = torch.randn(6, 5, generator=draw, dtype=torch.float64)
    teacher = torch.randn(6, TOKENS, generator=draw, dtype=torch.float64).log_softmax(-1)
    logprobs, ids = teacher.topk(listed)
    plain, padded = heads()
    results = []
    for head in (plain, padded):
        loss, _ = topk_distillation(hidden, head, ids, logprobs, divergence="reverse", global_count=6)
        loss.backward()
        results.append(loss.detach())
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert plain.weight.grad is not None
    assert padded.weight.grad is not None
    torch.testing.assert_close(padded.weight.grad[:TOKENS], plain.weight.grad, rtol=1e-12, atol=1e-12)
    assert not padded.weight.grad[TOKENS:].any()


def test_logits_of_padding_are_those_of_no_token() -> None:
    hidden = torch.randn(3, 5, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    plain, padded = heads()
    logits = logits_of(hidden, padded)
    assert torch.equal(logits[:, :TOKENS], logits_of(hidden, plain))
    assert bool(torch.isneginf(logits[:, TOKENS:]).all())


def test_an_id_of_padding_is_beyond_the_head() -> None:
    _, padded = heads()
    with pytest.raises(ValueError, match="beyond the student's head"):
        next_token_logprobs(torch.zeros(1, 5, dtype=torch.float64), padded, torch.tensor([TOKENS]))

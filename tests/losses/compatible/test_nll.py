"""The negative log likelihood: recorded values, and what its counts divide."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atroposlib.losses.compatible.interfaces import LossInputType, LossType
from atroposlib.losses.compatible.nll import NLLLossFn
from tests.support import loss_values

COUNTS = {"global_valid_seqs": torch.tensor(5.0), "global_valid_toks": torch.tensor(20.0)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", loss_values.cases("NLLLossFn"), ids=str)
def test_recorded(case: loss_values.Case, dtype: torch.dtype) -> None:
    loss_values.check_outcome(case, loss_values.load(case, dtype), NLLLossFn())


def batch() -> tuple[Tensor, dict[str, Tensor]]:
    logprobs = torch.tensor([[-1.0, -2.0, -4.0], [-8.0, -16.0, -32.0]], dtype=torch.float64)
    data = {
        "token_mask": torch.tensor([[1, 1, 0, 1], [0, 0, 1, 1]]),
        "sample_mask": torch.tensor([1.0, 1.0], dtype=torch.float64),
    }
    return logprobs.requires_grad_(), data


def test_the_sum_is_divided_by_the_tokens_of_the_step() -> None:
    logprobs, data = batch()
    loss, metrics = NLLLossFn()(logprobs, data, **COUNTS)
    assert loss.item() == pytest.approx((1 + 4 + 16 + 32) / 20)
    assert metrics["num_unmasked_tokens"] == 4
    assert not metrics["loss"].requires_grad


def test_one_value_a_sequence() -> None:
    logprobs, data = batch()
    loss, _ = NLLLossFn()(logprobs, data, **COUNTS, dpo_loss=True)
    assert loss.tolist() == [5, 48]
    loss, _ = NLLLossFn()(logprobs, data, **COUNTS, dpo_loss=True, dpo_average_log_probs=True)
    assert loss.tolist() == [2.5, 24]


def test_a_sequence_without_a_trained_token_is_0_in_either_way() -> None:
    logprobs, data = batch()
    data["token_mask"][0] = 0
    for average in (False, True):
        loss, _ = NLLLossFn()(logprobs, data, **COUNTS, dpo_loss=True, dpo_average_log_probs=average)
        (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
        assert loss[0] == 0
        assert torch.equal(gradient[0], torch.zeros(3, dtype=torch.float64))


def test_an_untrained_minus_infinity_reaches_neither_loss_nor_gradient() -> None:
    logprobs, data = batch()
    hole = torch.where(data["token_mask"][:, 1:] > 0, logprobs.detach(), -torch.inf).requires_grad_()
    for options in ({}, {"dpo_loss": True}, {"dpo_loss": True, "dpo_average_log_probs": True}):
        loss, _ = NLLLossFn()(hole, data, **COUNTS, **options)
        (gradient,) = torch.autograd.grad(loss.sum(), hole)
        assert torch.isfinite(loss).all()
        assert torch.equal(gradient != 0, data["token_mask"][:, 1:] > 0)


def test_no_token_in_the_whole_step_gives_0() -> None:
    logprobs, data = batch()
    data["token_mask"] *= 0
    loss, _ = NLLLossFn()(logprobs, data, torch.tensor(0.0), torch.tensor(0.0))
    loss.backward()
    assert loss == 0
    assert torch.equal(logprobs.grad, torch.zeros_like(logprobs))


def test_level_and_input() -> None:
    assert NLLLossFn.loss_type is LossType.TOKEN_LEVEL
    assert NLLLossFn.input_type is LossInputType.LOGPROB

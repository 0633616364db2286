"""Preference losses and DPO: recorded values, the formula pair by pair, pairs that are not whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible.dpo import DPOLossFn
from atroposlib.losses.compatible.interfaces import LossInputType, LossType
from atroposlib.losses.compatible.preference import PreferenceLossFn
from atroposlib.types import PROMPT_LOGPROB
from tests.support import loss_values

COUNTS = {"global_valid_seqs": torch.tensor(10.0), "global_valid_toks": None}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", loss_values.cases("PreferenceLossFn", "DPOLossFn"), ids=str)
def test_recorded(case: loss_values.Case, dtype: torch.dtype) -> None:
    loaded = loss_values.load(case, dtype)
    loss_fn = PreferenceLossFn() if case.subject == "PreferenceLossFn" else DPOLossFn(loaded.config)
    loss_values.check_outcome(case, loaded, loss_fn)


def make_batch() -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    logprobs = -torch.rand(6, 5, generator=generator, dtype=torch.float64) * 3
    data = {
        "reference_policy_logprobs": -torch.rand(6, 6, generator=generator, dtype=torch.float64) * 3,
        "token_mask": (torch.rand(6, 6, generator=generator) < 0.7).long(),
        "sample_mask": torch.ones(6, dtype=torch.float64),
    }
    data["token_mask"][2, 3] = 1
    return logprobs.requires_grad_(), data


def by_hand(logprobs: Tensor, data: dict[str, Tensor], config: dict[str, Any]) -> float:
    """The loss of all pairs in plain floats."""
    total = 0.0
    for pair in range(3):
        rewards, likelihoods = [], []
        for row in (2 * pair, 2 * pair + 1):
            at = [t for t in range(5) if data["token_mask"][row, t + 1]]
            gains = [logprobs[row, t].item() - data["reference_policy_logprobs"][row, t].item() for t in at]
            length = len(at) if config.get("preference_average_log_probs") else 1
            rewards.append(sum(gains) / length)
            length = len(at) if config.get("sft_average_log_probs") else 1
            likelihoods.append(-sum(logprobs[row, t].item() for t in at) / length)
        margin = config.get("reference_policy_kl_penalty", 0.05) * (rewards[0] - rewards[1])
        total += config.get("preference_loss_weight", 1.0) * math.log(1 + math.exp(-margin))
        total += config.get("sft_loss_weight", 0.0) * likelihoods[0]
    return total / 5


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"reference_policy_kl_penalty": 0.7, "preference_average_log_probs": True},
        {"sft_loss_weight": 0.3, "preference_loss_weight": 0.5},
        {"sft_loss_weight": 2.0, "sft_average_log_probs": True},
    ],
    ids=["plain", "average", "sft", "sft_average"],
)
def test_value_is_that_of_the_formula_by_hand(config: dict[str, Any]) -> None:
    logprobs, data = make_batch()
    loss, _ = DPOLossFn(config)(logprobs, data, **COUNTS)
    assert loss.item() == pytest.approx(by_hand(logprobs, data, config), rel=1e-7)
    assert torch.autograd.gradcheck(
        lambda leaf: DPOLossFn(config)(leaf, data, **COUNTS)[0], (logprobs,), atol=1e-8
    )


def test_pairs_add_up_over_micro_batches() -> None:
    logprobs, data = make_batch()
    loss_fn = DPOLossFn({"sft_loss_weight": 0.3})
    whole, _ = loss_fn(logprobs, data, **COUNTS)
    parts = [
        loss_fn(logprobs[at], {key: value[at] for key, value in data.items()}, **COUNTS)[0]
        for at in (slice(0, 2), slice(2, 6))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("key", "absent"),
    [
        ("next_token_logprobs", -torch.inf),
        ("reference_policy_logprobs", -torch.inf),
        ("reference_policy_logprobs", PROMPT_LOGPROB),
    ],
)
def test_an_absent_logprob_takes_its_pair_out(key: str, absent: float) -> None:
    logprobs, data = make_batch()
    without = {name: value.clone() for name, value in data.items()}
    without["sample_mask"][2:4] = 0
    expected, _ = DPOLossFn({"sft_loss_weight": 0.3})(logprobs, without, **COUNTS)
    hole = logprobs.detach().clone()
    data.get(key, hole)[2, 2] = absent
    loss, metrics = DPOLossFn({"sft_loss_weight": 0.3})(hole.requires_grad_(), data, **COUNTS)
    (gradient,) = torch.autograd.grad(loss, hole)
    torch.testing.assert_close(loss, expected)
    assert torch.equal(gradient[2:4], torch.zeros(2, 5, dtype=torch.float64))
    assert torch.isfinite(gradient).all()
    assert metrics["num_half_pairs"] == 1
    assert metrics["num_valid_samples"] == 2


def test_half_a_pair_is_not_trained_and_counted() -> None:
    rewards = torch.tensor([[1.0], [0.0], [5.0], [2.0]], requires_grad=True)
    loss, metrics = PreferenceLossFn()(
        rewards, {"sample_mask": torch.tensor([1.0, 1.0, 1.0, 0.0])}, torch.tensor(2.0), None
    )
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1.0)))
    assert metrics["num_half_pairs"] == 1


def test_a_row_without_a_partner_is_refused() -> None:
    with pytest.raises(LossError, match="no partner"):
        PreferenceLossFn()(torch.zeros(3, 1), {"sample_mask": torch.ones(3)}, torch.tensor(4.0), None)


def test_levels_and_inputs() -> None:
    assert PreferenceLossFn().loss_type is LossType.SEQUENCE_LEVEL
    assert PreferenceLossFn().input_type is LossInputType.LOGIT
    assert DPOLossFn({}).loss_type is LossType.SEQUENCE_LEVEL
    assert DPOLossFn({}).input_type is LossInputType.LOGPROB

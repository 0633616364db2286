"""The value loss: recorded values, and the clipping worked out by hand."""

from __future__ import annotations

import pytest
import torch

from atroposlib.losses.compatible.interfaces import LossInputType, LossType
from atroposlib.losses.compatible.value import MseValueLossFn
from tests.support import loss_values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", loss_values.cases("MseValueLossFn"), ids=str)
def test_recorded(case: loss_values.Case, dtype: torch.dtype) -> None:
    loaded = loss_values.load(case, dtype)
    loss_values.check_outcome(case, loaded, MseValueLossFn(loaded.config))


def test_a_prediction_beyond_the_range_learns_only_where_clipping_makes_it_better() -> None:
    # Token 0 moved away from its return and is held back by no clip; token 1 moved past the range towards
    # its return, where the clipped error is the larger one and has no gradient.
    predicted = torch.tensor([[1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    data = {
        "values": torch.tensor([[0.0, 0.0]], dtype=torch.float64),
        "returns": torch.tensor([[-1.0, 2.0]], dtype=torch.float64),
        "token_mask": torch.ones(1, 2),
        "sample_mask": torch.ones(1),
    }
    loss, metrics = MseValueLossFn({"cliprange": 0.5})(predicted, data, torch.tensor(1.0), torch.tensor(2.0))
    loss.backward()
    assert loss.item() == pytest.approx((2.0**2 + 1.5**2) / 2 / 2)
    torch.testing.assert_close(predicted.grad, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert metrics["vf_clipfrac"].item() == pytest.approx(0.5)


def test_a_batch_without_a_trained_token_has_finite_metrics() -> None:
    predicted = torch.zeros(1, 2, 1, requires_grad=True)
    data = {
        "values": torch.full((1, 2), torch.nan),
        "returns": torch.full((1, 2), torch.nan),
        "token_mask": torch.zeros(1, 2),
        "sample_mask": torch.ones(1),
    }
    loss, metrics = MseValueLossFn({})(predicted, data, torch.tensor(1.0), torch.tensor(2.0))
    loss.backward()
    assert loss == 0
    assert torch.equal(predicted.grad, torch.zeros_like(predicted))
    assert all(torch.isfinite(value) for value in metrics.values())


def test_level_and_input() -> None:
    assert MseValueLossFn({}).loss_type is LossType.TOKEN_LEVEL
    assert MseValueLossFn({}).input_type is LossInputType.LOGIT

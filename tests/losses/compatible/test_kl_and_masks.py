"""KL estimates and masked means: recorded values, and what makes each estimate one of a KL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.compatible.kl import calculate_kl
from atroposlib.losses.compatible.masked import mask_out_neg_inf_logprobs, masked_mean
from tests.support import loss_values

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "function:calculate_kl": calculate_kl,
    "function:masked_mean": masked_mean,
    "function:mask_out_neg_inf_logprobs": mask_out_neg_inf_logprobs,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", loss_values.cases(*FUNCTIONS), ids=str)
def test_recorded(case: loss_values.Case, dtype: torch.dtype) -> None:
    loaded = loss_values.load(case, dtype)
    value = FUNCTIONS[case.subject](**loaded.call)
    loaded.check(value, loaded.outputs["value"], "value")
    if loaded.grads:
        loaded.check_gradients(value)


def distributions() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    return logits[0].requires_grad_(), logits[1]


@pytest.mark.parametrize("kl_type", ["k1", "k3"])
def test_the_estimate_is_unbiased(kl_type: str) -> None:
    policy, reference = (logits.detach().log_softmax(-1) for logits in distributions())
    mean = (policy.exp() * calculate_kl(policy, reference, kl_type, None, None)).sum()
    torch.testing.assert_close(mean, (policy.exp() * (policy - reference)).sum(), rtol=1e-12, atol=0)


def gradient_of(value: Tensor, leaf: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
    return gradient


@pytest.mark.parametrize(("kl_type", "weighted"), [("k1", True), ("k3", True), ("k2", False)])
def test_the_expected_gradient_is_that_of_the_kl(kl_type: str, weighted: bool) -> None:
    leaf, logits = distributions()
    policy, reference = leaf.log_softmax(-1), logits.log_softmax(-1)
    weights = (policy - policy.detach()).exp() if weighted else None
    estimate = calculate_kl(policy, reference, kl_type, None, None, weights)
    sampled = gradient_of((policy.detach().exp() * estimate).sum(), leaf)
    exact = gradient_of((policy.exp() * (policy - reference)).sum(), leaf)
    torch.testing.assert_close(sampled, exact, rtol=1e-10, atol=1e-12)


def test_k3_without_weights_has_the_gradient_of_the_other_kl() -> None:
    leaf, logits = distributions()
    policy, reference = leaf.log_softmax(-1), logits.log_softmax(-1)
    estimate = calculate_kl(policy, reference, "k3", None, None)
    sampled = gradient_of((policy.detach().exp() * estimate).sum(), leaf)
    forward = gradient_of((reference.exp() * (reference - policy)).sum(), leaf)
    torch.testing.assert_close(sampled, forward, rtol=1e-10, atol=1e-12)


def test_an_unknown_estimate_is_refused() -> None:
    with pytest.raises(ConfigError, match="k4"):
        calculate_kl(torch.zeros(1), torch.zeros(1), "k4")


@pytest.mark.parametrize("options", [{}, {"dim": -1}, {"global_normalization_factor": 4.0}])
def test_what_is_masked_has_no_influence_whatever_it_is(options: dict[str, Any]) -> None:
    values = torch.tensor([[1.0, torch.nan], [torch.inf, 3.0]], requires_grad=True)
    mask = torch.tensor([[1, 0], [0, 1]])
    mean = masked_mean(values, mask, **options)
    (gradient,) = torch.autograd.grad(mean.sum(), values)
    clean = masked_mean(torch.tensor([[1.0, 0.0], [0.0, 3.0]]), mask, **options)
    torch.testing.assert_close(mean, clean)
    assert torch.equal(gradient == 0, mask == 0)


def test_a_global_count_of_0_gives_0() -> None:
    assert masked_mean(torch.ones(3), torch.ones(3), None, torch.tensor(0.0)) == 0
    assert masked_mean(torch.ones(3), torch.ones(3), None, 0) == 0

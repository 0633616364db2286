"""The clipped policy gradient: the recorded values, formulas written out token by token, odd batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible.clipped_pg import ClippedPGLossFn
from atroposlib.losses.compatible.interfaces import LossInputType, LossType
from tests.support import loss_values

CASES = loss_values.cases("ClippedPGLossFn")
SEQUENCES, TOKENS = 6, 9
COUNTS = {"global_valid_seqs": torch.tensor(11.0), "global_valid_toks": torch.tensor(53.0)}
"""Counts of the step, which are not those of the batch."""


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_recorded(case: loss_values.Case, dtype: torch.dtype) -> None:
    loaded = loss_values.load(case, dtype)
    loss_values.check_outcome(case, loaded, ClippedPGLossFn(loaded.config))


@dataclass
class Batch:
    """Random rollouts; the policy's logprobs are a leaf."""

    logprobs: Tensor
    data: dict[str, Tensor]

    def part(self, at: slice) -> Batch:
        logprobs = self.logprobs.detach()[at].clone().requires_grad_()
        return Batch(logprobs, {name: value[at] for name, value in self.data.items()})

    def run(self, config: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        loss, metrics = ClippedPGLossFn(config)(self.logprobs, self.data, **COUNTS)
        (gradient,) = torch.autograd.grad(loss, self.logprobs)
        return loss.detach(), gradient, metrics


def make_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def around(center: Tensor, spread: float) -> Tensor:
        noise = torch.randn(center.shape, generator=generator, dtype=torch.float64)
        return (center + spread * noise).clamp(max=-1e-3)

    start = torch.full((SEQUENCES, TOKENS), -1.5, dtype=torch.float64)
    previous = around(start, 0.8)
    data = {
        "prev_logprobs": previous,
        "generation_logprobs": around(previous, 0.2),
        "reference_policy_logprobs": around(previous, 0.5),
        "advantages": torch.randn(SEQUENCES, TOKENS, generator=generator, dtype=torch.float64),
        "token_mask": torch.rand(SEQUENCES, TOKENS, generator=generator) < 0.7,
        "sample_mask": torch.tensor([1, 1, 0, 1, 1, 1]),
        "rewards": torch.tensor([1.0, -1.0, 1.0, 0.0, 0.5, 2.0]),
    }
    return Batch(around(previous[:, 1:], 0.4).requires_grad_(), data)


def clamped(value: Tensor, least: float, most: float) -> Tensor:
    if value < least:
        return torch.tensor(least, dtype=torch.float64)
    return torch.tensor(most, dtype=torch.float64) if value > most else value


def weight_by_hand(config: dict[str, Any], differences: list[float], own: float) -> float:
    """The importance weight of one token, whose log weight is ``own``, of a sequence with ``differences``."""
    if not config.get("use_importance_sampling_correction"):
        return 1.0
    is_whole = config.get("sequence_level_importance_ratios")
    weight = math.exp(sum(differences) if is_whole else own)
    kind = config.get("truncated_importance_sampling_type")
    most = config.get("truncated_importance_sampling_ratio", math.inf)
    least = config.get("truncated_importance_sampling_ratio_min", 0.0)
    if kind == "tis":
        return min(max(weight, least), most)
    if kind == "icepop":
        return weight if least <= weight <= most else 0.0
    if kind == "seq-mask-tis":
        return weight if least <= math.exp(sum(differences) / len(differences)) <= most else 0.0
    return weight


def kl_by_hand(config: dict[str, Any], current: Tensor, reference: Tensor, sampled: Tensor) -> Tensor:
    """One token's estimate with its gradient: that of policy / sampler * estimate."""
    ratio = reference - current
    kind = config.get("reference_policy_kl_type", "k3")
    estimate = {"k1": -ratio, "k2": ratio**2 / 2, "k3": torch.exp(ratio) - 1 - ratio}[kind]
    on_policy = not config.get("use_on_policy_kl_approximation")
    return torch.exp(current - (current.detach() if on_policy else sampled)) * estimate


def surrogate_by_hand(config: dict[str, Any], ratio: Tensor, advantage: float, current: Tensor) -> Tensor:
    if config.get("disable_ppo_ratio"):
        return -advantage * current
    if config.get("force_on_policy_ratio"):
        return -advantage * torch.exp(current - current.detach())
    near = clamped(ratio, 1 - config.get("ratio_clip_min", 0.2), 1 + config.get("ratio_clip_max", 0.2))
    if config.get("use_cispo"):
        return -near.item() * advantage * current
    gain = min(ratio * advantage, near * advantage, key=Tensor.item)
    if "ratio_clip_c" in config and advantage < 0:
        gain = max(
            gain, torch.tensor(config["ratio_clip_c"] * advantage, dtype=torch.float64), key=Tensor.item
        )
    return -gain


def by_hand(config: dict[str, Any], batch: Batch) -> Tensor:
    """The loss, one token after another."""
    data, penalty = batch.data, config.get("reference_policy_kl_penalty", 0.01)
    penalty = 0.0 if config.get("use_kl_in_reward") else penalty
    total = torch.zeros((), dtype=torch.float64)
    for row in range(SEQUENCES):
        at = [t for t in range(TOKENS - 1) if data["token_mask"][row, t + 1]]
        if not data["sample_mask"][row] or not at:
            continue
        current = [batch.logprobs[row, t] for t in at]
        previous = [data["prev_logprobs"][row, t + 1] for t in at]
        if config.get("force_on_policy_ratio"):
            previous = [value.detach() for value in current]
        sampled = [data["generation_logprobs"][row, t + 1] for t in at]
        differences = [float(p - s) for p, s in zip(previous, sampled, strict=True)]
        logs = [c - p for c, p in zip(current, previous, strict=True)]
        if config.get("sequence_level_importance_ratios"):
            logs = [sum(logs, torch.zeros(())) / len(logs)] * len(logs)
        parts = [
            weight_by_hand(config, differences, differences[i])
            * surrogate_by_hand(config, torch.exp(logs[i]), float(data["advantages"][row, t + 1]), current[i])
            + penalty
            * kl_by_hand(config, current[i], data["reference_policy_logprobs"][row, t + 1], sampled[i])
            for i, t in enumerate(at)
        ]
        of_row = sum(parts, torch.zeros((), dtype=torch.float64))
        is_by_token = config.get("token_level_loss", True)
        count = COUNTS["global_valid_toks"] if is_by_token else COUNTS["global_valid_seqs"] * len(at)
        total = total + of_row / count
    return total


IS = {"use_importance_sampling_correction": True}
BOUNDS = {"truncated_importance_sampling_ratio": 1.2, "truncated_importance_sampling_ratio_min": 0.8}
CONFIGS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dapo": {"ratio_clip_max": 0.28, "reference_policy_kl_penalty": 0.0},
    "dual_clip": {"ratio_clip_c": 1.3, "token_level_loss": False},
    "reinforce": {"disable_ppo_ratio": True, "reference_policy_kl_type": "k1"},
    "gspo": {"sequence_level_importance_ratios": True, "token_level_loss": False, "ratio_clip_min": 0.05},
    "gspo_weighted": {"sequence_level_importance_ratios": True, "token_level_loss": False, **IS},
    "cispo": {"use_cispo": True, "ratio_clip_max": 0.4},
    "on_policy": {"force_on_policy_ratio": True, **IS, "reference_policy_kl_type": "k2"},
    "tis": {**IS, **BOUNDS, "truncated_importance_sampling_type": "tis"},
    "icepop": {**IS, **BOUNDS, "truncated_importance_sampling_type": "icepop"},
    "seq_mask_tis": {
        **IS,
        "truncated_importance_sampling_type": "seq-mask-tis",
        "truncated_importance_sampling_ratio": 1.05,
        "truncated_importance_sampling_ratio_min": 0.95,
    },
    "off_policy_kl": {"use_on_policy_kl_approximation": True, "reference_policy_kl_penalty": 0.2},
    "kl_in_reward": {"use_kl_in_reward": True, "reference_policy_kl_penalty": 0.2},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_value_and_gradient_are_those_of_the_formula_by_hand(name: str) -> None:
    batch = make_batch()
    loss, gradient, _ = batch.run(CONFIGS[name])
    expected = by_hand(CONFIGS[name], batch)
    (expected_gradient,) = torch.autograd.grad(expected, batch.logprobs)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-10)


def test_positive_example_nll_by_hand() -> None:
    batch = make_batch()
    _, _, metrics = batch.run({"positive_example_nll_weight": 0.5})
    kept = [
        batch.logprobs[row, t].item()
        for row in (0, 4, 5)
        for t in range(TOKENS - 1)
        if batch.data["token_mask"][row, t + 1]
    ]
    assert float(metrics["positive_nll_loss"]) == pytest.approx(-sum(kept) / len(kept), rel=1e-7)
    assert int(metrics["positive_nll_tokens"]) == len(kept)
    _, _, metrics = batch.run(
        {"positive_example_nll_weight": 0.5, "positive_example_nll_over_global_tokens": True}
    )
    assert float(metrics["positive_nll_loss"]) == pytest.approx(-sum(kept) / 53, rel=1e-7)


@pytest.mark.parametrize("cut", [1, 2, 5])
@pytest.mark.parametrize("name", CONFIGS)
def test_micro_batches_add_up_to_the_batch(name: str, cut: int) -> None:
    batch = make_batch(1)
    loss, gradient, _ = batch.run(CONFIGS[name])
    parts = [batch.part(slice(0, cut)).run(CONFIGS[name]), batch.part(slice(cut, None)).run(CONFIGS[name])]
    torch.testing.assert_close(parts[0][0] + parts[1][0], loss, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.cat([parts[0][1], parts[1][1]]), gradient, rtol=1e-12, atol=1e-14)


def test_positive_nll_adds_up_over_micro_batches_only_with_the_global_count() -> None:
    batch = make_batch()

    def gap(config: dict[str, Any]) -> float:
        whole = batch.run(config)[0]
        return float(
            (batch.part(slice(0, 2)).run(config)[0] + batch.part(slice(2, 6)).run(config)[0]) - whole
        )

    weighted = {"positive_example_nll_weight": 0.5}
    assert abs(gap(weighted)) > 1e-2
    assert abs(gap({**weighted, "positive_example_nll_over_global_tokens": True})) < 1e-12


def test_a_loss_that_depends_on_its_batches_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    ClippedPGLossFn({"positive_example_nll_weight": 0.5})
    assert "positive_example_nll_over_global_tokens" in caplog.text
    caplog.clear()
    ClippedPGLossFn({"positive_example_nll_weight": 0.5, "positive_example_nll_over_global_tokens": True})
    assert not caplog.records


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_at_an_untrained_token_reaches_loss_or_gradient(name: str) -> None:
    batch = make_batch()
    untrained = ~(batch.data["token_mask"] & (batch.data["sample_mask"] > 0)[:, None])
    rubbish = dict(batch.data)
    for key in ("prev_logprobs", "generation_logprobs", "reference_policy_logprobs", "advantages"):
        rubbish[key] = torch.where(untrained, torch.nan, batch.data[key])
    logprobs = torch.where(untrained[:, 1:], -torch.inf, batch.logprobs.detach()).requires_grad_()
    loss, gradient, metrics = Batch(logprobs, rubbish).run(CONFIGS[name])
    clean_loss, clean_gradient, clean_metrics = batch.run(CONFIGS[name])
    torch.testing.assert_close(loss, clean_loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, clean_gradient, rtol=1e-12, atol=1e-15)
    for key, value in clean_metrics.items():
        torch.testing.assert_close(metrics[key], value, rtol=1e-12, atol=1e-15, msg=key)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("missing", [-torch.inf, -9999.0, 1.0])
def test_a_token_without_the_samplers_logprob_has_weight_0_and_is_counted(name: str, missing: float) -> None:
    batch = make_batch()
    batch.data["token_mask"][1, 3] = True
    batch.data["generation_logprobs"][1, 3] = missing
    loss, gradient, metrics = batch.run(CONFIGS[name])
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    assert int(metrics["absent_generation_logprob"]) == 1


def test_weight_0_takes_out_the_token_or_with_gspo_the_sequence() -> None:
    batch = make_batch()
    batch.data["token_mask"][1, 2:5] = True
    batch.data["generation_logprobs"][1, 3] = -torch.inf
    weighted = IS | {"reference_policy_kl_penalty": 0.0, "use_cispo": True}
    assert torch.equal(batch.run(weighted)[1][1, 1:4] == 0, torch.tensor([False, True, False]))
    gspo = CONFIGS["gspo_weighted"] | {"reference_policy_kl_penalty": 0.0, "ratio_clip_min": 1.0}
    gspo |= {"ratio_clip_max": 100.0}
    gradient = batch.run(gspo)[1]
    assert torch.equal(gradient[1], torch.zeros(TOKENS - 1, dtype=torch.float64))
    assert gradient[0].any()


@pytest.mark.parametrize("key", ["prev_logprobs", "next_token_logprobs"])
def test_a_token_without_its_ratio_is_as_if_it_were_masked(key: str) -> None:
    batch, masked = make_batch(), make_batch()
    masked.data["token_mask"][1, 3] = False
    batch.data["token_mask"][1, 3] = True
    if key == "prev_logprobs":
        batch.data[key][1, 3] = -torch.inf
    else:
        batch.logprobs = batch.logprobs.detach().index_put(
            (torch.tensor([1]), torch.tensor([2])), torch.tensor(-torch.inf, dtype=torch.float64)
        )
        batch.logprobs.requires_grad_()
    loss, gradient, metrics = batch.run({"token_level_loss": False})
    expected_loss, expected_gradient, _ = masked.run({"token_level_loss": False})
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(gradient, expected_gradient)
    assert int(metrics["untrained_absent_logprob"]) == 1


def test_a_token_without_the_references_logprob_keeps_its_policy_gradient() -> None:
    batch = make_batch()
    batch.data["token_mask"][1, 3] = True
    without = {"reference_policy_kl_penalty": 0.0}
    config = {"reference_policy_kl_penalty": 0.5, "reference_policy_kl_type": "k1"}
    batch.data["reference_policy_logprobs"][1, 3] = -torch.inf
    loss, gradient, metrics = batch.run(config)
    assert torch.isfinite(loss)
    assert gradient[1, 2] == batch.run(without)[1][1, 2]
    assert int(metrics["tokens_without_kl"]) == 1


def test_the_off_policy_kl_leaves_out_a_token_without_the_samplers_logprob() -> None:
    batch, without = make_batch(), make_batch()
    config = CONFIGS["off_policy_kl"] | {"disable_ppo_ratio": True}
    for each in (batch, without):
        each.data["token_mask"][1, 3], each.data["advantages"][1, 3] = True, 0.0
    batch.data["generation_logprobs"][1, 3] = -torch.inf
    without.data["token_mask"][1, 3] = False
    loss, gradient, metrics = batch.run(config)
    torch.testing.assert_close(loss, without.run(config)[0])
    torch.testing.assert_close(gradient, without.run(config)[1])
    assert int(metrics["tokens_without_kl"]) == 1


def test_a_batch_without_a_trained_token_gives_0_that_backward_can_run_through() -> None:
    batch = make_batch()
    batch.data["token_mask"][:] = False
    loss, gradient, metrics = batch.run(
        {"positive_example_nll_weight": 0.5, "positive_example_nll_over_global_tokens": True}
    )
    assert loss == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))
    assert all(torch.isfinite(torch.as_tensor(value)) for value in metrics.values())


def test_an_importance_weight_beyond_floats_is_0_and_counted() -> None:
    batch = make_batch()
    batch.data["token_mask"][1, 3] = True
    batch.data["generation_logprobs"][1, 3] = -5000.0
    loss, _, metrics = batch.run(IS)
    assert torch.isfinite(loss)
    assert int(metrics["importance_overflows"]) == 1


def test_bfloat16_logprobs_are_computed_in_float32() -> None:
    batch = make_batch()
    data = {name: value.float() for name, value in batch.data.items()}
    rounded = batch.logprobs.detach().bfloat16()
    loss, _ = ClippedPGLossFn({})(rounded, data, **COUNTS)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, ClippedPGLossFn({})(rounded.float(), data, **COUNTS)[0], rtol=0, atol=0)


def test_level_and_input_of_the_loss() -> None:
    assert ClippedPGLossFn({}).input_type is LossInputType.LOGPROB
    assert ClippedPGLossFn({}).loss_type is LossType.TOKEN_LEVEL
    assert ClippedPGLossFn({"token_level_loss": False}).loss_type is LossType.SEQUENCE_LEVEL


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_float32_leaves_the_gradient_finite(advantage: float) -> None:
    batch = make_batch()
    logprobs = batch.logprobs.detach().float().requires_grad_()
    data = {name: value.float() for name, value in batch.data.items()}
    data["advantages"] = torch.full_like(data["advantages"], advantage)
    data["prev_logprobs"][0, 1:] = -300.0
    loss, _ = ClippedPGLossFn({"reference_policy_kl_penalty": 0.0})(logprobs, data, **COUNTS)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert not gradient[0].any()


def test_a_key_that_the_settings_need_is_asked_for_by_name() -> None:
    batch = make_batch()
    del batch.data["reference_policy_logprobs"]
    with pytest.raises(LossError, match="reference_policy_logprobs: the batch lacks"):
        batch.run({})
    batch.run({"reference_policy_kl_penalty": 0.0})

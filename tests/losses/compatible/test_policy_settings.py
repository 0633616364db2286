"""Settings of the policy gradient, DPO and value losses: what is refused, where, and in which words."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.errors import ConfigError
from atroposlib.losses.compatible.clipped_pg import ClippedPGLossFn
from atroposlib.losses.compatible.clipped_pg_config import ClippedPGLossConfig
from atroposlib.losses.compatible.dpo import DPOLossConfig, DPOLossFn
from atroposlib.losses.compatible.value import MseValueLossConfig, MseValueLossFn
from tests.support import loss_values

MAKE = {"ClippedPGLossFn": ClippedPGLossConfig, "MseValueLossFn": MseValueLossConfig}
REFUSED = loss_values.refusals(*MAKE)


@pytest.mark.parametrize("entry", REFUSED, ids=[entry["why"] for entry in REFUSED])
def test_what_the_library_refuses_or_takes_in_silence_is_refused_at_construction(entry: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        MAKE[entry["class"]](**entry["config"])
    assert raised.value.code.startswith(("config.", "usage."))


@pytest.mark.parametrize(
    ("make", "config", "said"),
    [
        (ClippedPGLossFn, {"ratio_clip_c": 0.5}, "ratio_clip_c"),
        (ClippedPGLossFn, {"ratio_clip_mim": 0.5}, "did you mean ratio_clip_min"),
        (ClippedPGLossFn, {"ratio_clip_min": float("nan")}, "ratio_clip_min"),
        (ClippedPGLossFn, {"reference_policy_kl_penalty": -0.1}, "reference_policy_kl_penalty"),
        (ClippedPGLossFn, {"disable_ppo_ratio": True, "force_on_policy_ratio": True}, "no ratio to force"),
        (ClippedPGLossFn, {"disable_ppo_ratio": True, "ratio_clip_c": 3.0}, "no ratio to clip"),
        (ClippedPGLossFn, {"truncated_importance_sampling_ratio_min": 0.5}, "without truncated"),
        (DPOLossFn, {"preference_loss_weight": 0.0}, "both terms have weight 0"),
        (DPOLossFn, {"reference_policy_kl_penalty": 0.0}, "greater than 0"),
        (DPOLossFn, {"beta": 0.1}, "unknown option"),
        (MseValueLossFn, {"cliprange": -1.0}, "cliprange"),
    ],
)
def test_refusal_names_the_setting(make: Any, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(config)


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (ClippedPGLossFn, ClippedPGLossConfig(use_cispo=True)),
        (DPOLossFn, DPOLossConfig(sft_loss_weight=0.5)),
        (MseValueLossFn, MseValueLossConfig(cliprange=0.2)),
    ],
)
def test_settings_and_a_mapping_of_them_make_the_same(make: Any, config: Any) -> None:
    assert make(config).cfg == make(config.model_dump()).cfg == config


def test_defaults_are_the_seed_pages() -> None:
    defaults = ClippedPGLossConfig()
    assert (defaults.ratio_clip_min, defaults.ratio_clip_max, defaults.ratio_clip_c) == (0.2, 0.2, None)
    assert (defaults.reference_policy_kl_penalty, defaults.reference_policy_kl_type) == (0.01, "k3")
    assert (defaults.kl_input_clamp_value, defaults.kl_output_clamp_value) == (20.0, 10.0)
    assert DPOLossConfig().reference_policy_kl_penalty == 0.05
    assert (MseValueLossConfig().scale, MseValueLossConfig().cliprange) == (1.0, None)

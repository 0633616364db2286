"""Settings of the clipped policy gradient, and which of them contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from atroposlib.errors import ConfigError

KlType = Literal["k1", "k2", "k3"]
TruncationType = Literal["tis", "icepop", "seq-mask-tis"]
Contradiction = tuple[bool, str, str]
"""Whether it holds; what is wrong; the fix."""


class ClippedPGFields(BaseModel):
    """What both the loss class and the trainer take."""

    disable_ppo_ratio: bool = Field(
        False, description="REINFORCE: the logprob in place of the ratio, and no clipping."
    )
    token_level_loss: bool = Field(
        True, description="Mean over the step's tokens; else over sequences of each one's own mean."
    )
    sequence_level_importance_ratios: bool = Field(
        False, description="GSPO: one ratio a sequence, e to the mean of its tokens' log ratios."
    )
    ratio_clip_min: float = Field(0.2, ge=0, description="Lowest ratio is 1 less this.")
    ratio_clip_max: float = Field(0.2, ge=0, description="Highest ratio is 1 plus this.")
    ratio_clip_c: float | None = Field(
        None, gt=1, description="Dual clip: bound of the ratio where the advantage is negative."
    )
    reference_policy_kl_penalty: float = Field(0.01, ge=0, description="Weight of the KL to the reference.")
    reference_policy_kl_type: KlType = Field("k3", description="How the KL is estimated from one token.")
    kl_input_clamp_value: float | None = Field(
        20.0, gt=0, description="Bound of the size of the log ratio within the KL; null for none."
    )
    kl_output_clamp_value: float | None = Field(
        10.0, gt=0, description="Bound of the size of a token's KL; null for none."
    )
    use_kl_in_reward: bool = Field(
        False, description="The KL is part of the advantages already, so the loss leaves it out."
    )
    use_importance_sampling_correction: bool = Field(
        False, description="Weight each token by previous policy / sampler."
    )
    truncated_importance_sampling_type: TruncationType | None = Field(
        None,
        description="tis: bound these weights; icepop: drop tokens outside the bounds; seq-mask-tis: drop "
        "sequences whose geometric mean is outside.",
    )
    truncated_importance_sampling_ratio: float | None = Field(None, gt=0, description="The upper bound.")
    truncated_importance_sampling_ratio_min: float | None = Field(None, ge=0, description="The lower bound.")
    use_on_policy_kl_approximation: bool = Field(
        False, description="Weight the KL by policy / sampler, as its estimate needs off policy."
    )
    force_on_policy_ratio: bool = Field(
        False, description="The ratio is 1: one update a rollout; previous logprobs are not read."
    )
    use_cispo: bool = Field(
        False, description="CISPO: the clipped ratio is a constant weight of the logprob's gradient."
    )
    positive_example_nll_weight: float = Field(
        0.0, ge=0, description="Weight of the NLL of sequences whose reward is positive."
    )
    positive_example_nll_over_global_tokens: bool = Field(
        False,
        description="Divide that NLL by the step's tokens. The seed page's way, the default, divides by the "
        "positive tokens of this batch, so that its gradient depends on how a step is cut into batches.",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for holds, what, fix in (*self._about_ratios(), *self._about_truncation()):
            if holds:
                raise ConfigError(what, fix=fix)
        return self

    def _about_ratios(self) -> Iterator[Contradiction]:
        one = "set one of them"
        yield (
            self.sequence_level_importance_ratios and self.token_level_loss,
            "sequence_level_importance_ratios with token_level_loss",
            "set token_level_loss to false",
        )
        yield (
            self.disable_ppo_ratio and self.force_on_policy_ratio,
            "disable_ppo_ratio with force_on_policy_ratio: there is no ratio to force",
            one,
        )
        yield (
            self.disable_ppo_ratio and self.ratio_clip_c is not None,
            "disable_ppo_ratio with ratio_clip_c: there is no ratio to clip",
            "leave ratio_clip_c out",
        )
        if not self.use_cispo:
            return
        yield self.disable_ppo_ratio, "use_cispo with disable_ppo_ratio: CISPO needs the ratio", one
        yield self.force_on_policy_ratio, "use_cispo with force_on_policy_ratio: CISPO needs the ratio", one
        yield (
            self.sequence_level_importance_ratios,
            "use_cispo with sequence_level_importance_ratios: CISPO's ratios are of tokens",
            one,
        )
        yield (
            self.ratio_clip_c is not None,
            "use_cispo with ratio_clip_c: its ratio has two bounds",
            "leave ratio_clip_c out",
        )
        yield not self.token_level_loss, "use_cispo needs token_level_loss", "set token_level_loss to true"

    def _about_truncation(self) -> Iterator[Contradiction]:
        kind = self.truncated_importance_sampling_type
        most, least = (
            self.truncated_importance_sampling_ratio,
            self.truncated_importance_sampling_ratio_min,
        )
        yield (
            kind is None and (most is not None or least is not None),
            "bounds of the importance weights without truncated_importance_sampling_type",
            "name a type or leave the bounds out",
        )
        if kind is None:
            return
        yield (
            not self.use_importance_sampling_correction,
            f"truncated_importance_sampling_type {kind} without use_importance_sampling_correction",
            "set use_importance_sampling_correction to true",
        )
        yield (
            most is None,
            f"truncated_importance_sampling_type {kind} without truncated_importance_sampling_ratio",
            "set the upper bound",
        )
        yield (
            kind != "tis" and least is None,
            f"truncated_importance_sampling_type {kind} without truncated_importance_sampling_ratio_min",
            "set the lower bound",
        )
        yield (
            most is not None and least is not None and least > most,
            "truncated_importance_sampling_ratio_min is above truncated_importance_sampling_ratio",
            "swap them",
        )
        yield (
            kind == "seq-mask-tis" and self.sequence_level_importance_ratios,
            "seq-mask-tis with sequence_level_importance_ratios: it bounds means of tokens' weights",
            "use tis",
        )

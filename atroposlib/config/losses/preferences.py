"""Settings of direct preference optimization."""

from __future__ import annotations

from pydantic import BaseModel, Field


class DPOFields(BaseModel):
    """What both the loss class and the trainer take."""

    reference_policy_kl_penalty: float = Field(0.05, gt=0, description="beta, the factor on a pair's margin.")
    preference_loss_weight: float = Field(1.0, ge=0, description="Weight of the preference term.")
    sft_loss_weight: float = Field(0.0, ge=0, description="Weight of the chosen sequences' NLL.")
    preference_average_log_probs: bool = Field(False, description="Rewards are means over tokens, not sums.")
    sft_average_log_probs: bool = Field(False, description="The NLL of a sequence is a mean over its tokens.")

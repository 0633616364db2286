"""Settings and batch keys of the clipped policy gradient."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from torch import Tensor

from atroposlib.config.losses.clipped_pg import ClippedPGFields
from atroposlib.losses.compatible.settings import Settings


class ClippedPGLossConfig(Settings, ClippedPGFields):
    """Settings of :class:`atroposlib.losses.compatible.clipped_pg.ClippedPGLossFn`."""


class ClippedPGLossDataDict(TypedDict):
    """What the clipped policy gradient reads; column t of [B, T] speaks of token t, column 0 is not read.

    Attributes:
        input_ids: int64 [B, T].
        advantages: [B, T].
        prev_logprobs: [B, T] nats of the policy before this update.
        generation_logprobs: [B, T] nats of the sampler; -inf or -9999 where it said nothing.
        reference_policy_logprobs: [B, T] nats of the reference, likewise.
        token_mask: [B, T].
        sample_mask: [B].
        rewards: [B], for the NLL of positive examples.
        curr_logprobs_unfiltered: [B, T-1] nats of the policy without the sampler's top-k and top-p, for the
            KL; ``next_token_logprobs`` where the key is missing.
    """

    input_ids: Tensor
    advantages: Tensor
    prev_logprobs: Tensor
    generation_logprobs: Tensor
    reference_policy_logprobs: Tensor
    token_mask: Tensor
    sample_mask: Tensor
    rewards: NotRequired[Tensor]
    curr_logprobs_unfiltered: NotRequired[Tensor]
    __extra__: Any

"""One micro-batch of rollouts as the policy gradient reads it: absent logprobs taken out by mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.losses.compatible.interfaces import Data
from atroposlib.losses.compatible.masked import Counts, Mask, absent
from atroposlib.losses.compatible.sharded import wide
from atroposlib.types import PROMPT_LOGPROB


@dataclass(frozen=True, slots=True)
class RolloutTokens:
    """Logprobs of sampled tokens under several policies; all [B, T-1], 0 where the token is not trained.

    Attributes:
        current: Of the policy, with its gradient.
        previous: Of the policy before this update.
        sampled: Of the sampler; ``previous`` where it is not known.
        is_sampled_known: Where it is.
        advantages: Of each token.
        mask: Which tokens are trained.
        metrics: Tokens that were left out, by reason.
    """

    current: Tensor
    previous: Tensor
    sampled: Tensor
    is_sampled_known: Tensor
    advantages: Tensor
    mask: Mask
    metrics: dict[str, Tensor]

    @property
    def known_mask(self) -> Mask:
        """The mask of the tokens of which the sampler's logprob is known."""
        return self.mask._replace(tokens=self.mask.tokens * self.is_sampled_known)


def read_tokens(next_token_logprobs: Tensor, data: Data, counts: Counts, *, on_policy: bool) -> RolloutTokens:
    """The tokens of a micro-batch.

    A token without the policy's current or previous logprob is not trained. One without the sampler's is:
    only its importance weight is 0.

    Args:
        next_token_logprobs: [B, T-1] nats.
        data: See :class:`atroposlib.losses.compatible.clipped_pg_config.ClippedPGLossDataDict`.
        counts: Of the whole step.
        on_policy: The current logprobs stand for the previous ones.
    """
    current = wide(next_token_logprobs)
    mask = Mask.of(data, current, counts)
    asked = mask.both != 0
    given = current.detach() if on_policy else data["prev_logprobs"][:, 1:]
    trained = asked & ~absent(current) & ~unknown(given)
    sampled = data["generation_logprobs"][:, 1:]
    is_sampled_known = trained & ~unknown(sampled)
    previous = torch.where(trained, given, 0.0)
    return RolloutTokens(
        current=torch.where(trained, current, 0.0),
        previous=previous,
        sampled=torch.where(is_sampled_known, sampled, previous),
        is_sampled_known=is_sampled_known,
        advantages=torch.where(trained, data["advantages"][:, 1:], 0.0),
        mask=mask._replace(tokens=torch.where(asked & ~trained, 0.0, mask.tokens)),
        metrics={
            "untrained_absent_logprob": (asked & ~trained).sum(),
            "absent_generation_logprob": (trained & ~is_sampled_known).sum(),
        },
    )


def unknown(logprobs: Tensor) -> Tensor:
    """bool: where a policy's logprob is absent, or the wire's marker of a token that was not sampled."""
    return absent(logprobs) | (logprobs == PROMPT_LOGPROB)

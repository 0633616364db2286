"""Means over what a mask keeps, divided by a count of the whole step where the caller knows one."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from atroposlib.losses.compatible.interfaces import Data
from atroposlib.types import ABSENT_LOGPROB

EPSILON = 1e-8
"""Added to every count, as the recorded values have it: an empty mask gives 0 / EPSILON = 0."""


def masked_mean(
    values: Tensor,
    mask: Tensor,
    dim: int | None = None,
    global_normalization_factor: Tensor | float | None = None,
) -> Tensor:
    """sum(values * mask) / (count + 1e-8); 0 where a global count is 0.

    Args:
        values: Of any shape; what stands where the mask is 0 has no influence, NaN included.
        mask: Of the same shape, or one that broadcasts to it.
        dim: Axis to sum over; None for all.
        global_normalization_factor: Count of the whole step; None for the mask's own along ``dim``.
    """
    wide_mask = mask.to(values.dtype).expand_as(values)
    total = torch.where(wide_mask != 0, values * wide_mask, 0.0).sum(dim)
    if global_normalization_factor is None:
        return total / (wide_mask.sum(dim) + EPSILON)
    count = torch.as_tensor(global_normalization_factor, dtype=values.dtype, device=values.device)
    return torch.where(count == 0, total * 0.0, total / (count + EPSILON))


def mask_out_neg_inf_logprobs(logprobs: Tensor, mask: Tensor) -> Tensor:
    """``logprobs`` with 0 where they are -inf or the mask is 0."""
    return torch.where(torch.isneginf(logprobs) | (mask == 0), 0.0, logprobs)


def extrema(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest value where the mask is not 0, detached; 0 and 0 where it keeps nothing."""
    kept, values = mask != 0, values.detach()
    if values.numel() == 0:
        return values.new_zeros(()), values.new_zeros(())
    least, most = torch.where(kept, values, torch.inf).amin(), torch.where(kept, values, -torch.inf).amax()
    # No host is asked whether any is kept: that would wait for the device.
    return torch.where(kept.any(), least, 0.0), torch.where(kept.any(), most, 0.0)


def absent(logprobs: Tensor) -> Tensor:
    """bool: where a logprob was never known (-inf or the wire's marker). NaN is no absence but a fault."""
    return logprobs <= ABSENT_LOGPROB


class Counts(NamedTuple):
    """Sequences and tokens of the whole step, over all ranks; 0-dimensional tensors or numbers."""

    sequences: Tensor | float | None
    tokens: Tensor | float | None


class Mask(NamedTuple):
    """Which tokens of which sequences are trained, and what their means divide by.

    Attributes:
        tokens: [B, T-1], 1 where the predicted token is trained.
        sequences: [B], 1 where the sequence is.
        counts: Of the whole step.
    """

    tokens: Tensor
    sequences: Tensor
    counts: Counts

    @classmethod
    def of(cls, data: Data, like: Tensor, counts: Counts) -> Self:
        """From the keys ``token_mask`` [B, T] and ``sample_mask`` [B], in the dtype of ``like``."""
        return cls(data["token_mask"][:, 1:].to(like.dtype), data["sample_mask"].to(like.dtype), counts)

    @property
    def both(self) -> Tensor:
        """[B, T-1], 1 where the token and its sequence are trained."""
        return self.tokens * self.sequences[:, None]

    def token_mean(self, values: Tensor) -> Tensor:
        """The mean of [B, T-1] (or [B, 1]) over the step's tokens."""
        return masked_mean(values.expand_as(self.tokens), self.both, None, self.counts.tokens)

    def sequence_mean(self, values: Tensor) -> Tensor:
        """The mean of [B] over the step's sequences."""
        return masked_mean(values, self.sequences, None, self.counts.sequences)

    def mean(self, values: Tensor, *, of_tokens: bool) -> Tensor:
        """The mean of [B, T-1] over tokens, or over sequences of each one's mean over its own tokens."""
        if of_tokens:
            return self.token_mean(values)
        return self.sequence_mean(masked_mean(values, self.tokens, -1))

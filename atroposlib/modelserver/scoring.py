"""Turn hidden states and logits into logprobs, top-k and ranks without holding all logits at once."""

from __future__ import annotations

from collections.abc import Callable

import torch

CHUNK_ELEMENTS = 1 << 23
"""Most float32 logits of one chunk (32 MiB): large enough for the matrix product, small beside the model."""


class NotFiniteError(ArithmeticError):
    """The model gave NaN or infinite logits, so no logprob can be told."""


def score_logits(
    logits: torch.Tensor, named: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The logprobs of named ids and of the k best ones at each of N positions.

    Args:
        logits: float32 or float64 [N, V].
        named: int64 [N, M]; column 0 is the token selected there.
        k: How many of the most likely ids to add.

    Returns:
        Ids int64 [N, M + k], their logprobs [N, M + k] in the type of ``logits``, and the rank int64 [N] of
        the selected id: how many ids are at least as likely.
    """
    chosen = logits.gather(-1, named)
    best, best_ids = logits.topk(k, dim=-1)
    normaliser = logits.logsumexp(-1, keepdim=True)
    ids = torch.cat([named, best_ids], dim=-1)
    logprobs = torch.cat([chosen, best], dim=-1) - normaliser
    return ids, logprobs, (logits >= chosen[:, :1]).sum(-1)


def score_hidden(
    hidden: torch.Tensor,
    named: torch.Tensor,
    k: int,
    head: Callable[[torch.Tensor], torch.Tensor],
    vocab: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`score_logits` of ``head(hidden)``, in chunks of :data:`CHUNK_ELEMENTS`.

    Args:
        hidden: [N, H], N at least 1.
        named: int64 [N, M].
        k: How many of the most likely ids to add.
        head: Maps [n, H] to float logits [n, V].
        vocab: V.
    """
    rows = max(1, CHUNK_ELEMENTS // vocab)
    chunks = [
        score_logits(head(hidden[start : start + rows]), named[start : start + rows], k)
        for start in range(0, len(hidden), rows)
    ]
    ids, logprobs, ranks = zip(*chunks, strict=True)
    return torch.cat(ids), torch.cat(logprobs), torch.cat(ranks)


def finite_rows(logprobs: torch.Tensor) -> torch.Tensor:
    """bool [N]: rows of [N, K] that hold neither NaN nor +inf (-inf is a probability of zero)."""
    return (logprobs <= 0.0 + 1e-3).all(-1)

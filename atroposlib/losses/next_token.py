"""Logprobs of one token a row, straight from hidden states and head, and losses of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.elementwise import exponentiate
from atroposlib.losses.groups import ALONE, Groups
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import Figures, Metrics, Rows, read_rows, sum_over_rows

TOTAL, TOKEN = 0, 1
"""Columns of the sums: all exponentials, and the logit of the row's token."""


def next_token_logprobs(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    *,
    temperature: float = 1.0,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> Tensor:
    """log p(token) of each row, differentiable; the backward pass computes the logits again.

    Args:
        hidden: [N, H] of the student at the positions that predict each row's token.
        head: The student's output layer.
        ids: integer [N]; negative where the row has no token. Such rows reach no matrix product.
        temperature: Divides the logits.
        groups: Ranks that share the head's rows.
        chunk_rows: Rows of logits that exist at once; None for what fits into ``linear.CHUNK_BYTES``.

    Returns:
        [N] nats, float32 (float64 where ``hidden`` is); 0 without gradient where the row has no token.

    Raises:
        LossError: An id beyond the head, or another number of ids than rows.
    """
    rows = rows_with_a_token(hidden, ids, vocabulary_of(head, groups))
    readout = NextTokenReadout(ids[rows].long())
    (logprobs,) = read_rows(
        hidden.index_select(0, rows),
        head,
        readout,
        temperature=temperature,
        groups=groups,
        chunk_rows=chunk_rows,
    )
    return logprobs.new_zeros(ids.shape).index_copy(0, rows, logprobs)


def sum_over_tokens(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    token_loss: Callable[[Tensor, Tensor], tuple[Tensor, Metrics]],
    *,
    temperature: float = 1.0,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
    recompute: bool = False,
) -> tuple[Tensor, Metrics]:
    """A loss that is a sum over tokens, with its gradient formed in the forward pass unless ``recompute``.

    Args:
        hidden, head, ids, temperature, groups, chunk_rows: As for :func:`next_token_logprobs`.
        token_loss: Given the logprobs [n] of some tokens in float64, and which of the N rows they are, the
            losses [n] and metrics (sums).
        recompute: Form the gradient in the backward pass: slower, keeps nothing of the head's size.

    Raises:
        LossError: An id beyond the head, or another number of ids than rows.
    """
    rows = rows_with_a_token(hidden, ids, vocabulary_of(head, groups))

    def summed_loss(figures: Figures, at: slice) -> tuple[Tensor, Metrics]:
        losses, metrics = token_loss(figures[0].double(), rows[at])
        loss = losses.sum().to(figures[0].dtype)
        metrics = {"loss": loss, **metrics}
        return loss, {name: value.detach() for name, value in metrics.items()}

    return sum_over_rows(
        hidden.index_select(0, rows),
        head,
        NextTokenReadout(ids[rows].long()),
        summed_loss,
        temperature=temperature,
        groups=groups,
        chunk_rows=chunk_rows,
        recompute=recompute,
    )


def rows_with_a_token(hidden: Tensor, ids: Tensor, vocabulary: int) -> Tensor:
    """int64: where ``ids`` [N] is not negative.

    Raises:
        LossError: An id from ``vocabulary`` on, whose probability is not the head's to say; or another number
            of ids than rows.
    """
    if hidden.dim() != 2 or hidden.shape[:1] != ids.shape:
        raise LossError(
            "not one token id a row of hidden states", got=list(ids.shape), expected=list(hidden.shape[:1])
        )
    beyond = ids >= vocabulary
    if beyond.any():
        row = int(beyond.nonzero()[0])
        raise LossError(
            "a token id lies beyond the student's head",
            where=f"row {row}",
            got=int(ids[row]),
            expected=f"below {vocabulary}",
            fix="mask the row with a negative id",
        )
    return (ids >= 0).nonzero().squeeze(-1)


@dataclass(frozen=True, slots=True)
class NextTokenReadout:
    """The logprob of one token a row; :meth:`finish` gives it as [n], in nats.

    Attributes:
        ids: int64 [N], each from 0 to V - 1.
    """

    ids: Tensor

    def measure(self, shifted: Tensor, rows: Rows) -> tuple[Tensor, Any]:
        """See :class:`atroposlib.losses.linear.Readout`."""
        column, here = self._column(shifted, rows)
        token = torch.where(here, shifted.gather(-1, column), 0.0)
        return torch.cat([exponentiate(shifted), token], -1), shifted

    def spread(self, kept: Any, gradients: Tensor, rows: Rows) -> Tensor:
        """See :class:`atroposlib.losses.linear.Readout`."""
        exponentials: Tensor = kept
        column, here = self._column(exponentials, rows)
        at_token = torch.where(here, gradients[:, TOKEN:], 0.0)
        return exponentials.mul_(gradients[:, TOTAL:TOKEN]).scatter_add_(-1, column, at_token)

    def finish(self, sums: Tensor, at: slice) -> Figures:
        """See :class:`atroposlib.losses.linear.Readout`."""
        return (sums[:, TOKEN] - sums[:, TOTAL].log(),)

    def _column(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """int64 [n, 1] column of this slice, any where it is another rank's; and whether it is here."""
        column = self.ids[rows.at, None] - rows.first_id
        here = (column >= 0) & (column < logits.shape[-1])
        return torch.where(here, column, 0), here


def token_counts(listed: Tensor, present: Tensor) -> Metrics:
    """The counts of a loss of N tokens.

    Args:
        listed: bool [N]. Tokens with everything that the loss needs.
        present: bool [N]. Those of them that the student has, which are trained.
    """
    return {
        "rows": present.sum(),
        "untrained_rows": (~present).sum(),
        "out_of_vocabulary": (listed & ~present).sum(),
    }

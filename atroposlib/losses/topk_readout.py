"""Reads a row of logits at listed ids: their log probabilities, and that of all other tokens together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.elementwise import exponentiate
from atroposlib.losses.linear import Figures, Rows

TAIL, HEAD, SURPRISE, LISTED = 0, 1, 2, 3
"""Columns of the sums: exponentials of unlisted tokens; of listed ones; sum of exponential times logit over
unlisted ones; then the logits of the K listed ones."""


@dataclass(frozen=True, slots=True)
class TopKReadout:
    """Log probabilities of K listed tokens a row and of the tail, every token that is not listed.

    The tail is the sum of its own exponentials. As 1 - head it would be rounding noise below 1e-7, just
    where a confident student lives.

    :meth:`finish` gives ``log_listed`` [n, K] and ``log_tail`` [n] in nats; ``tail_entropy`` [n], the sum of
    p log p over the tail's tokens (0 unless asked for); and ``top_listed`` bool [n], whether the likeliest
    token of all is listed. Absent columns hold finite numbers that mean nothing. Where every token is
    listed, ``log_tail`` is 0.

    Attributes:
        ids: int64 [N, K]; each id once in a row, negative where there is none, below V.
        vocabulary: V, over all ranks.
        masked_ids: int64 [M] ids in a rising order, none of them listed. They leave the distribution: every
            figure is conditional on another token. None for none.
        entropy: Whether ``tail_entropy`` is wanted; it costs one more pass.
    """

    ids: Tensor
    vocabulary: int
    masked_ids: Tensor | None = None
    entropy: bool = False

    def measure(self, shifted: Tensor, rows: Rows) -> tuple[Tensor, Any]:
        """See :class:`atroposlib.losses.linear.Readout`."""
        columns, here = self._columns(shifted, rows)
        at_columns = shifted.gather(-1, columns)
        listed = torch.where(here, at_columns, 0.0)
        # A row without a listed column writes back what stood there.
        shifted.scatter_(-1, columns, torch.where(here.any(-1, keepdim=True), -torch.inf, at_columns))
        self._mask(shifted, rows)
        head = torch.where(here, listed.exp(), 0.0)
        tail = exponentiate(shifted)
        surprise = torch.xlogy(shifted, shifted).sum(-1, keepdim=True) if self.entropy else tail * 0.0
        return torch.cat([tail, head.sum(-1, keepdim=True), surprise, listed], -1), (shifted, head)

    def spread(self, kept: Any, gradients: Tensor, rows: Rows) -> Tensor:
        """See :class:`atroposlib.losses.linear.Readout`."""
        exponentials, head = kept
        columns, here = self._columns(exponentials, rows)
        factor = gradients[:, TAIL : TAIL + 1]
        result: Tensor
        if self.entropy:
            slope = gradients[:, SURPRISE : SURPRISE + 1]
            surprise = torch.xlogy(exponentials, exponentials).mul_(slope)
            result = exponentials.mul_(factor + slope).add_(surprise)
        else:
            result = exponentials.mul_(factor)
        at_listed = torch.where(here, head * gradients[:, HEAD : HEAD + 1] + gradients[:, LISTED:], 0.0)
        return result.scatter_add_(-1, columns, at_listed)

    def finish(self, sums: Tensor, at: slice) -> Figures:
        """See :class:`atroposlib.losses.linear.Readout`."""
        log_total = (sums[:, TAIL] + sums[:, HEAD]).log()
        no_tail = self.lists_all(at)
        tail = torch.where(no_tail, 1.0, sums[:, TAIL].clamp_min(torch.finfo(sums.dtype).tiny))
        log_tail = torch.where(no_tail, 0.0, tail.log() - log_total)
        tail_entropy = (sums[:, SURPRISE] - log_total * sums[:, TAIL]) / log_total.exp()
        listed = sums[:, LISTED:]
        # The row's maximum was taken off every logit, so that the likeliest token's is exactly 0.
        top_listed = ((listed == 0) & (self.ids[at] >= 0)).any(-1)
        return listed - log_total[:, None], log_tail, tail_entropy, top_listed

    def lists_all(self, at: slice) -> Tensor:
        """bool [n]: whether the rows ``at`` list every token, so that there is no tail."""
        outcomes = self.vocabulary - (0 if self.masked_ids is None else self.masked_ids.numel())
        return (self.ids[at] >= 0).sum(-1) >= outcomes

    def _columns(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """int64 [n, K] columns of this slice, and whether each stands for a listed id of it.

        Where it does not, the column is any: what is written there is what stood there.
        """
        columns = self.ids[rows.at] - rows.first_id
        here = (self.ids[rows.at] >= 0) & (columns >= 0) & (columns < logits.shape[-1])
        return torch.where(here, columns, _a_listed_column(columns, here)), here

    def _mask(self, shifted: Tensor, rows: Rows) -> None:
        if self.masked_ids is None:
            return
        columns = self.masked_ids - rows.first_id
        shifted.index_fill_(-1, columns[(columns >= 0) & (columns < shifted.shape[-1])], -torch.inf)


def _a_listed_column(columns: Tensor, here: Tensor) -> Tensor:
    """[n, 1]: one column of each row that is listed here; 0 where there is none.

    Padding repeats an id of its own row: writing to token 0 would take a real token out of the tail.
    """
    if not columns.shape[-1]:
        return columns
    first = columns.gather(-1, here.to(torch.uint8).argmax(-1, keepdim=True))
    return torch.where(here.any(-1, keepdim=True), first, 0)

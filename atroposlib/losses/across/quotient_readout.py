"""Reads a row of logits by common outcomes: the mass of listed components, and of the rest of the class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.losses.linear import Figures, Rows

MARKER = 256
"""First symbol of an id that stands for no bytes; it is in every class."""

TOTAL, TAIL, TOKEN, CELLS = 0, 1, 2, 3
"""Columns of the sums: all exponentials, those of the class outside of listed cells, the logit of the row's
token, then the exponentials of each of K cells."""


@dataclass(frozen=True, slots=True)
class QuotientReadout:
    """Log probabilities, in nats, of what a row's targets name.

    :meth:`finish` gives ``log_token`` [n] of the token that stands there, ``log_cells`` [n, K] of the listed
    components, ``log_tail`` [n] of the rest of the class and ``log_class`` [n] of the class. Absent cells
    hold 0. The tail is the sum of its own exponentials (:class:`..topk_readout.TopKReadout`).

    Attributes:
        targets: What is read.
    """

    targets: ChunkTargets

    def measure(self, shifted: Tensor, rows: Rows) -> tuple[Tensor, Any]:
        """See :class:`atroposlib.losses.linear.Readout`."""
        token, here = self._token(shifted, rows)
        logit = torch.where(here, shifted.gather(-1, token), 0.0)
        exponentials = shifted.exp_()
        total = exponentials.sum(-1, keepdim=True)
        at, cell = self._members(exponentials, rows)
        flat = exponentials.view(-1)
        members = flat[at]
        shape = self.targets.cells[rows.at].shape
        cells = members.new_zeros(shape[0] * shape[1]).index_add_(0, cell, members).view(shape)
        flat[at] = 0.0
        in_class = self._class(exponentials, rows)
        tail = torch.where(in_class, exponentials, 0.0).sum(-1, keepdim=True)
        return torch.cat([total, tail, logit, cells], -1), (exponentials, members, at, cell, in_class)

    def spread(self, kept: Any, gradients: Tensor, rows: Rows) -> Tensor:
        """See :class:`atroposlib.losses.linear.Readout`."""
        exponentials, members, at, cell, in_class = kept
        total, tail = gradients[:, TOTAL : TOTAL + 1], gradients[:, TAIL : TAIL + 1]
        result: Tensor = exponentials.mul_(torch.where(in_class, total + tail, total))
        of_cell = (gradients[:, CELLS:] + total).reshape(-1)
        result.view(-1)[at] = members * of_cell[cell]
        token, here = self._token(result, rows)
        return result.scatter_add_(-1, token, torch.where(here, gradients[:, TOKEN : TOKEN + 1], 0.0))

    def finish(self, sums: Tensor, at: slice) -> Figures:
        """See :class:`atroposlib.losses.linear.Readout`."""
        least = torch.finfo(sums.dtype).tiny
        listed = self.targets.cells[at] >= 0
        log_total = sums[:, TOTAL].log()
        cells = torch.where(listed, sums[:, CELLS:].clamp_min(least), 1.0)
        in_class = torch.where(listed, sums[:, CELLS:], 0.0).sum(-1) + sums[:, TAIL]
        return (
            sums[:, TOKEN] - log_total,
            torch.where(listed, cells.log() - log_total[:, None], 0.0),
            sums[:, TAIL].clamp_min(least).log() - log_total,
            in_class.clamp_min(least).log() - log_total,
        )

    def _token(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Column [n, 1] of the row's token in this slice, and whether it is here."""
        column = self.targets.tokens[rows.at, None] - rows.first_id
        here = (column >= 0) & (column < logits.shape[-1])
        return torch.where(here, column, 0), here

    def _members(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Every id of a listed cell that this slice has, as an index into the flat logits, and its cell."""
        vocabulary = self.targets.vocabulary
        component = self.targets.cells[rows.at].reshape(-1)
        listed = component.clamp_min(0)
        begins = vocabulary.member_offsets[listed]
        counts = torch.where(component >= 0, vocabulary.member_offsets[listed + 1] - begins, 0)
        cell = torch.repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        inside = torch.arange(len(cell), device=cell.device) + (begins - before)[cell]
        column = vocabulary.members[inside] - rows.first_id
        at = cell // self.targets.cells.shape[1] * logits.shape[-1] + column
        if rows.first_id == 0 and logits.shape[-1] >= len(vocabulary.first):
            return at, cell
        here = (column >= 0) & (column < logits.shape[-1])
        return at[here], cell[here]

    def _class(self, logits: Tensor, rows: Rows) -> Tensor:
        """bool [n, v]: which tokens of this slice are in the class of each row."""
        vocabulary = self.targets.vocabulary
        first = vocabulary.first.new_full((logits.shape[-1],), MARKER)
        known = vocabulary.first[rows.first_id : rows.first_id + len(first)]
        first[: len(known)] = known
        pairs = self.targets.before[rows.at] @ self.targets.before.new_tensor([MARKER + 1, 1])
        before, which = torch.unique(pairs, return_inverse=True)
        symbols = vocabulary.safe[before // (MARKER + 1)] & vocabulary.safe[before % (MARKER + 1)]
        return symbols[:, first][which]

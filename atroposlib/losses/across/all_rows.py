"""Reads all rows of a micro-batch, also those that other context ranks hold: a chunk may lie on several."""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.across.quotient_readout import QuotientReadout
from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.losses.groups import Group, Groups, summed_replicated
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Figures, read_rows


def read_all_rows(
    hidden: Tensor, head: Head, targets: ChunkTargets, *, groups: Groups, chunk_rows: int | None
) -> Figures:
    """The figures of :class:`QuotientReadout`, of all N rows, in float64.

    Every rank goes on to compute the loss of all rows, and gets the gradient of its own.

    Raises:
        LossError: Rows that do not fit ``hidden``, or no word on which ones a context rank holds.
    """
    own = targets.own
    if own is None and groups.context is not None:
        raise LossError(
            "a context rank must say which rows its hidden states are of",
            where="targets.own",
            fix="give the indices, dataclasses.replace(targets, own=...)",
        )
    here = targets if own is None else targets.read_at(own)
    if hidden.shape[0] != len(here.tokens):
        raise LossError(
            "hidden states do not fit the targets", got=hidden.shape[0], expected=len(here.tokens)
        )
    figures = read_rows(hidden, head, QuotientReadout(here), groups=groups, chunk_rows=chunk_rows)
    if own is None:
        return tuple(figure.double() for figure in figures)
    return tuple(_of_all_ranks(figure.double(), own, targets, groups.context) for figure in figures)


def share(values: Tensor, mine: Tensor) -> Tensor:
    """The sum over this rank's ``values`` [*], whose gradient is that of the sum over all of them.

    So shares add up over context ranks, like any loss that is a sum over rows, and each rank's backward pass
    still reaches its rows through the values of other ranks.
    """
    total = values.sum()
    return torch.where(mine, values.detach(), 0).sum() + (total - total.detach())


def _of_all_ranks(figure: Tensor, own: Tensor, targets: ChunkTargets, group: Group | None) -> Tensor:
    whole = figure.new_zeros(len(targets.tokens), *figure.shape[1:])
    return summed_replicated(whole.index_copy(0, own, figure), group)

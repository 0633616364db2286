"""The events of a quotient KL: what student and teacher give to each cell of a cut, before completion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.losses.divergences import Events

HIGHEST_SHARE = -1e-7
"""Log share of a chunk in its cell, nats, to which it is lowered, so that the rest is no empty event."""

LEAST_MASS = 1e-12
"""Probability that an event of the teacher counts as in a logarithm: it bounds the reverse KL."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Q cuts, E events each; all float64.

    Attributes:
        log_p: [Q, E] of the student, nats; 0 at absent events.
        mass: [Q, E] of the teacher, the part of each event that it named; 0 at absent events.
        is_open: bool [Q, E]. Whether the teacher may give it more than that.
        present: bool [Q, E].
        observed: int64 [Q]. The event that the token in the text belongs to.
    """

    log_p: Tensor
    mass: Tensor
    is_open: Tensor
    present: Tensor
    observed: Tensor

    def student(self) -> Tensor:
        """[Q, E] probabilities, detached; 0 at absent events."""
        return torch.where(self.present, self.log_p.detach().exp(), 0.0)

    def of_observed(self, values: Tensor) -> Tensor:
        """[Q]: the entry of the observed event in [Q, E]."""
        return values.gather(-1, self.observed[:, None]).squeeze(-1)

    def against(self, teacher: Tensor) -> Events:
        """The events with these probabilities [Q, E] of the teacher."""
        log_q = torch.where(self.present, teacher.clamp_min(LEAST_MASS).log(), 0.0)
        return Events(teacher, log_q, torch.where(self.present, self.log_p.exp(), 0.0), self.log_p)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The safe chunk that begins at each of Q cuts.

    Attributes:
        log_q: [Q]. Log probability of the chunk to the teacher, given the class of the cut; nats.
        log_p: [Q]. To the student.
        compared: bool [Q]. Where both are known and begin in one cell; elsewhere they mean nothing.
    """

    log_q: Tensor
    log_p: Tensor
    compared: Tensor


def cells_of(
    log_cells: Tensor, log_tail: Tensor, log_class: Tensor, targets: ChunkTargets, rows: Tensor
) -> Cells:
    """K listed components and one tail at each of the cuts ``rows`` [Q], given the class.

    Args:
        log_cells: [N, K] of the student, 0 where absent.
        log_tail: [N] of the rest of the class.
        log_class: [N].
        targets: What the rows are.
        rows: int64 [Q].
    """
    listed = targets.cells[rows] >= 0
    always = torch.ones_like(listed[:, :1])
    inside = log_class[rows, None]
    return Cells(
        log_p=torch.cat(
            [torch.where(listed, log_cells[rows] - inside, 0.0), log_tail[rows, None] - inside], -1
        ),
        mass=torch.cat([targets.cell_mass[rows], targets.tail_mass[rows, None]], -1),
        is_open=torch.cat([targets.cell_open[rows], always], -1),
        present=torch.cat([listed, always], -1),
        observed=targets.observed_cell[rows],
    )


def without_sampled(cells: Cells, sampled: Tensor) -> Cells:
    """The cells without those that are listed for the text's own token alone, which join the tail.

    Then the choice of cells does not depend on what was sampled.

    Args:
        cells: With the tail as the last event.
        sampled: bool [Q]. Where the observed cell is such a one.
    """
    leaves = torch.zeros_like(cells.present).scatter(-1, cells.observed[:, None], sampled[:, None])
    tail = torch.where(
        sampled, torch.logaddexp(cells.log_p[:, -1], cells.of_observed(cells.log_p)), cells.log_p[:, -1]
    )
    tail_mass = cells.mass[:, -1] + torch.where(leaves, cells.mass, 0.0).sum(-1)
    return Cells(
        log_p=torch.cat([torch.where(leaves, 0.0, cells.log_p)[:, :-1], tail[:, None]], -1),
        mass=torch.cat([torch.where(leaves, 0.0, cells.mass)[:, :-1], tail_mass[:, None]], -1),
        is_open=cells.is_open & ~leaves,
        present=cells.present & ~leaves,
        observed=torch.where(sampled, cells.present.shape[-1] - 1, cells.observed),
    )


def split_by_path(cells: Cells, chunk: Chunk) -> Cells:
    """The cells with the observed one split in two: the rest of it at its place, the chunk behind all.

    The shares are differences of log probabilities, so that neither side's rest is one of probabilities.
    The chunk's own mass is known; the rest may have tokens that were not named where the cell has.
    """
    share = (chunk.log_p - cells.of_observed(cells.log_p)).clamp_max(HIGHEST_SHARE)
    mass = cells.of_observed(cells.mass)
    known = torch.where(chunk.compared, mass, 1.0)
    teacher_share = torch.where(chunk.compared, chunk.log_q - known.log(), 0.0).clamp_max(0.0)
    rest = cells.of_observed(cells.log_p) + torch.log(-torch.expm1(share))
    here = torch.zeros_like(cells.present).scatter(-1, cells.observed[:, None], chunk.compared[:, None])
    whole = cells.of_observed(cells.log_p) + share
    compared = chunk.compared[:, None]
    return Cells(
        log_p=torch.cat(
            [torch.where(here, rest[:, None], cells.log_p), torch.where(compared, whole[:, None], 0.0)], -1
        ),
        mass=torch.cat(
            [
                torch.where(here, (known * -torch.expm1(teacher_share))[:, None], cells.mass),
                torch.where(compared, (known * teacher_share.exp())[:, None], 0.0),
            ],
            -1,
        ),
        is_open=torch.cat([cells.is_open, torch.zeros_like(compared)], -1),
        present=torch.cat([cells.present, compared], -1),
        observed=cells.observed,
    )

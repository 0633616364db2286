"""A teacher's sparse columns as the losses read them: what is absent masked, extra columns joined."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.types import ABSENT_LOGPROB

LEAST_REST = 1e-4
"""A row whose masked ids hold all but this much of the teacher's mass is not trained: float32 logprobs tell
too little of the rest."""


@dataclass(frozen=True, slots=True)
class TeacherColumns:
    """Columns of the n rows that have any, in float64: they are few, and a tail is a small difference.

    Attributes:
        size: N.
        rows: int64 [n], which of the N rows these are.
        ids: int64 [n, K]; each once in a row; -1 where there is none.
        log_q: [n, K] nats of the teacher; 0 where there is none.
        q: [n, K] probabilities; 0 where there is none.
        q_tail: [n] probability of all other tokens, max(0, 1 - sum q).
        log_q_tail: [n] its log, of no less than the logprobs' dtype tells from 0 (float32: 1.2e-7). Only a
            divergence that divides by the teacher's probability, as the reverse KL does, feels that floor.
        counts: Sums over all N rows: ``rows`` (n), ``untrained_rows``, ``captured_mass`` (teacher probability
            on the columns), ``out_of_vocabulary`` (entries beyond the student's head, left to the tail), and
            with masked ids ``masked_mass`` (teacher probability taken out).
    """

    size: int
    rows: Tensor
    ids: Tensor
    log_q: Tensor
    q: Tensor
    q_tail: Tensor
    log_q_tail: Tensor
    counts: dict[str, Tensor]

    @property
    def present(self) -> Tensor:
        """bool [n, K]."""
        return self.ids >= 0


def teacher_columns(
    ids: Tensor,
    logprobs: Tensor,
    vocabulary: int,
    *,
    extra_ids: Tensor | None = None,
    extra_logprobs: Tensor | None = None,
    masked_ids: Tensor | None = None,
    check: bool = False,
) -> TeacherColumns:
    """Reads the columns of N rows.

    Args:
        ids: integer [N, K]. A negative id is absent, wherever it stands in its row.
        logprobs: [N, K] nats; NaN, -inf and everything from -9999 down is absent.
        vocabulary: V, the rows of the student's head over all ranks; ids from V on belong to the tail.
        extra_ids: integer [N, E] ids that somebody else chose (the student); one that ``ids`` lists already
            is passed over.
        extra_logprobs: [N, E] nats of the teacher there; NaN where it said none.
        masked_ids: integer [M] ids that leave both distributions. What the teacher gives to those it lists
            is divided out; those it does not list stay in its tail unseen.
        check: Look for ids that stand twice in a row of ``ids``: their probability would count twice.

    Raises:
        LossError: Shapes that do not fit, or with ``check`` an id listed twice.
    """
    _fit(ids, logprobs, "logprobs")
    if check:
        _refuse_duplicates(ids, logprobs)
    ids, logprobs, listed = _joined(ids, logprobs, extra_ids, extra_logprobs)
    log_q = torch.where(listed, logprobs.double(), 0.0)
    q = torch.where(listed, log_q.exp(), 0.0)
    present = listed & (ids < vocabulary)
    counts = {"out_of_vocabulary": (listed & ~present).sum()}
    if masked_ids is not None:
        special = present & torch.isin(ids, masked_ids)
        masked_mass = torch.where(special, q, 0.0).sum(-1)
        present &= ~special & (masked_mass < 1.0 - LEAST_REST)[:, None]
        rest = (1.0 - masked_mass).clamp_min(LEAST_REST)[:, None]
        log_q, q = log_q - rest.log(), q / rest
        counts["masked_mass"] = masked_mass.sum()
    has_target = present.any(-1)
    counts |= {"rows": has_target.sum(), "untrained_rows": (~has_target).sum()}
    rows = has_target.nonzero().squeeze(-1)
    present = present[rows]
    q = torch.where(present, q[rows], 0.0)
    captured = q.sum(-1)
    q_tail = (1.0 - captured).clamp_min(0.0)
    return TeacherColumns(
        size=has_target.shape[0],
        rows=rows,
        ids=torch.where(present, ids[rows].long(), -1),
        log_q=torch.where(present, log_q[rows], 0.0),
        q=q,
        q_tail=q_tail,
        log_q_tail=q_tail.clamp_min(torch.finfo(logprobs.dtype).eps).log(),
        counts=counts | {"captured_mass": captured.sum()},
    )


def _joined(
    ids: Tensor, logprobs: Tensor, extra_ids: Tensor | None, extra_logprobs: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and logprobs [N, K + E] of the teacher's and the extra columns, and which of them are there."""
    width = ids.shape[-1]
    if (extra_ids is None) != (extra_logprobs is None):
        raise LossError("extra_ids and extra_logprobs come together", where="extra_ids")
    if extra_ids is not None and extra_logprobs is not None:
        _fit(extra_ids, extra_logprobs, "extra_logprobs")
        ids = torch.cat([ids, extra_ids.to(ids.dtype)], -1)
        logprobs = torch.cat([logprobs, extra_logprobs.to(logprobs.dtype)], -1)
    listed = (ids >= 0) & (logprobs > ABSENT_LOGPROB)
    if ids.shape[-1] > width:
        listed[:, width:] &= ~_seen_before(ids, listed)[:, width:]
    return ids, logprobs, listed


def _fit(ids: Tensor, logprobs: Tensor, name: str) -> None:
    if ids.shape != logprobs.shape or ids.dim() != 2:
        raise LossError(
            "ids and logprobs are not two [N, K] tensors alike",
            where=name,
            got=list(logprobs.shape),
            expected=list(ids.shape),
        )


def _seen_before(ids: Tensor, listed: Tensor) -> Tensor:
    """bool [N, K]: whether a listed column further left has the same id."""
    ordered, order = torch.where(listed, ids, -1).sort(dim=-1, stable=True)
    again = torch.zeros_like(listed)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(listed).scatter(-1, order, again)


def _refuse_duplicates(ids: Tensor, logprobs: Tensor) -> None:
    listed = (ids >= 0) & (logprobs > ABSENT_LOGPROB)
    twice = _seen_before(ids, listed) & listed
    if twice.any():
        row = int(twice.any(-1).nonzero()[0])
        raise LossError(
            "a token id stands twice among the teacher's columns", where=f"row {row}", got=ids[row].tolist()
        )

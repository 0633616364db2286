"""Runs a loss of a teacher's sparse columns over hidden states or logits; what such losses share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.checks import require_rows
from atroposlib.losses.groups import ALONE, Groups, share
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Figures, Metrics, sum_over_rows
from atroposlib.losses.logits import read_logits
from atroposlib.losses.teacher_columns import TeacherColumns
from atroposlib.losses.topk_readout import TopKReadout


@dataclass(frozen=True, slots=True)
class Pair:
    """Teacher and student on the columns of n rows, in float64.

    Attributes:
        present: bool [n, K].
        q, log_q: [n, K] of the teacher; 0 where there is no column.
        q_tail, log_q_tail: [n] likewise; 0 where every token is listed.
        p, log_p: [n, K] of the student; 0 where there is no column.
        p_tail, log_p_tail: [n] likewise; 0 where every token is listed.
        tail_entropy: [n], sum of p log p over the student's unlisted tokens; 0 unless asked for.
    """

    present: Tensor
    q: Tensor
    log_q: Tensor
    q_tail: Tensor
    log_q_tail: Tensor
    p: Tensor
    log_p: Tensor
    p_tail: Tensor
    log_p_tail: Tensor
    tail_entropy: Tensor


RowDivergence = Callable[[Pair], tuple[Tensor, Metrics]]
"""The losses of n rows [n], and metrics of its own (sums)."""


@dataclass(frozen=True, slots=True)
class SparseLoss:
    """A loss of sparse columns, ready to be run.

    Attributes:
        columns: The teacher's.
        divergence: Loss of each row.
        readout: Which figures of the student it needs.
        global_count: What the sum over rows is divided by.
        row_weights: [N] factors on rows, or None.
    """

    columns: TeacherColumns
    divergence: RowDivergence
    readout: TopKReadout
    global_count: int
    row_weights: Tensor | None = None

    def from_hidden(
        self,
        hidden: Tensor,
        head: Head,
        *,
        temperature: float = 1.0,
        groups: Groups = ALONE,
        chunk_rows: int | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, Metrics]:
        """Loss and metrics from hidden states [N, H]; rows without a column reach no matrix product."""
        self._fits(hidden)
        loss, metrics = sum_over_rows(
            hidden.index_select(0, self.columns.rows),
            head,
            self.readout,
            self._row_loss,
            temperature=temperature,
            groups=groups,
            chunk_rows=chunk_rows,
            recompute=recompute,
        )
        return share(loss, self.global_count), metrics | self.columns.counts

    def from_logits(
        self,
        logits: Tensor,
        *,
        temperature: float = 1.0,
        groups: Groups = ALONE,
        chunk_rows: int | None = None,
    ) -> tuple[Tensor, Metrics]:
        """The same from logits [N, V]."""
        self._fits(logits)
        figures = read_logits(
            logits,
            self.columns.rows,
            self.readout,
            temperature=temperature,
            groups=groups,
            chunk_rows=chunk_rows,
        )
        loss, metrics = self._row_loss(figures, slice(0, self.columns.rows.shape[0]))
        return share(loss, self.global_count), metrics | self.columns.counts

    def _fits(self, student: Tensor) -> None:
        rows = self.columns.size
        if student.dim() != 2 or student.shape[0] != rows:
            raise LossError(
                "the student's rows are not the teacher's",
                got=list(student.shape),
                expected=f"{rows} rows",
            )
        require_rows(rows, row_weights=self.row_weights)

    def _row_loss(self, figures: Figures, at: slice) -> tuple[Tensor, Metrics]:
        *student, top_listed = figures
        pair = self._pair(student, at)
        rows, own_metrics = self.divergence(pair)
        if self.row_weights is not None:
            rows = rows * self.row_weights[self.columns.rows[at]]
        # The sum keeps the accuracy of its terms; only the result is of the student's dtype.
        loss = rows.sum().to(student[0].dtype)
        metrics = {"loss": loss, "student_mass": pair.p.sum(), "overlap": top_listed.sum(), **own_metrics}
        return loss, {name: value.detach() for name, value in metrics.items()}

    def _pair(self, student: list[Tensor], at: slice) -> Pair:
        log_p, log_p_tail, tail_entropy = (figure.double() for figure in student)
        columns, present = self.columns, self.columns.present[at]
        has_tail = ~self.readout.lists_all(at)
        # Absent columns leave before any arithmetic: 0 * -inf never arises, in no gradient either.
        log_p = torch.where(present, log_p, 0.0)
        return Pair(
            present=present,
            q=columns.q[at],
            log_q=columns.log_q[at],
            q_tail=torch.where(has_tail, columns.q_tail[at], 0.0),
            log_q_tail=torch.where(has_tail, columns.log_q_tail[at], 0.0),
            p=torch.where(present, log_p.exp(), 0.0),
            log_p=log_p,
            p_tail=torch.where(has_tail, log_p_tail.exp(), 0.0),
            log_p_tail=log_p_tail,
            tail_entropy=tail_entropy,
        )

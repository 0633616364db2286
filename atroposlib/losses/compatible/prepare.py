"""Makes of a student's logits, or of its hidden states and head, what a loss class takes.

The shift is done here, on the batch's whole rows: logits at position p speak of token p + 1. B rows, T
positions of the whole row, t of this context-parallel rank, v this tensor-parallel rank's columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible.distillation import DistillationLossFn
from atroposlib.losses.compatible.interfaces import Batch, Data, LossFunction, LossInputType
from atroposlib.losses.compatible.localized import LocalizedAlignment, localize, next_of, teacher_count
from atroposlib.losses.compatible.masked import absent
from atroposlib.losses.compatible.sharded import (
    log_partition,
    logits_at,
    negative_entropy,
    positions_of,
    whole_positions,
    whole_vocabulary,
    wide,
)
from atroposlib.losses.compatible.sparse_columns import Teacher, log_softmax_of, teacher_of
from atroposlib.losses.groups import Group, Groups, rank_in, size_of
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import logits_of
from atroposlib.losses.next_token import next_token_logprobs


def prepare_loss_input(
    logits: Tensor,
    data: Data,
    loss_fn: LossFunction,
    *,
    head: Head | None = None,
    tp_group: Group | None = None,
    cp_group: Group | None = None,
    positions: Tensor | None = None,
    d2t: Tensor | None = None,
) -> dict[str, Any]:
    """The inputs of ``loss_fn`` by name, to be passed beside ``data`` and the global counts.

    Args:
        logits: [B, t, v] of the student; with ``head`` its hidden states [B, t, H] instead.
        data: The batch, of whole rows on every rank.
        loss_fn: Its ``input_type`` says what is made.
        head: The student's output layer. Next-token log probabilities are then computed in chunks, and masked
            tokens cost nothing; the other inputs form all logits.
        tp_group: Ranks that hold slices of the vocabulary, equal and in rank order.
        cp_group: Ranks that hold different positions of these rows, as many each.
        positions: int64 [t], which positions they are; None for consecutive ones in rank order.
        d2t: For a draft model, int64 [V_draft]: its token i is the target's i + d2t[i]; None where the two
            share a vocabulary. ``student_vocab_indices`` in the batch says the same as ids.

    Returns:
        What :class:`LossInputType` lists.

    Raises:
        LossError: The batch lacks what the loss needs, its shapes do not fit, a trained token lies beyond the
            head, or a loss with ``use_fused_linear_logprobs`` comes without ``head``.
    """
    if head is None and getattr(loss_fn, "use_fused_linear_logprobs", False):
        raise LossError(
            "use_fused_linear_logprobs takes hidden states and the student's output layer",
            where="head",
            got=None,
            fix="pass hidden states and head=, or make the loss without use_fused_linear_logprobs",
        )
    data = Batch(data)
    if positions is None:
        positions = positions_of(_length(data, logits, cp_group), cp_group, logits.device)
    if logits.shape[1] != len(positions):
        raise LossError(
            "the student's rows do not fit the batch's",
            got=f"{logits.shape[1]} positions",
            expected=len(positions),
        )
    student = _Student(logits, head, positions, tp_group, cp_group)
    if loss_fn.input_type is LossInputType.DRAFT:
        return _draft(student, data, d2t)
    return _MADE[loss_fn.input_type](student, data, loss_fn)


@dataclass(frozen=True, slots=True)
class _Student:
    """The student's output on this rank: ``rows`` are logits [B, t, v], with a head hidden states."""

    rows: Tensor
    head: Head | None
    positions: Tensor
    tp_group: Group | None
    cp_group: Group | None

    @property
    def logits(self) -> Tensor:
        """[B, t, v]."""
        if self.head is None:
            return self.rows
        return logits_of(self.rows, self.head, Groups(tensor=self.tp_group))

    @property
    def vocabulary(self) -> int:
        """V, over all tensor ranks."""
        if self.head is None:
            return self.rows.shape[-1] * size_of(self.tp_group)
        return vocabulary_of(self.head, Groups(tensor=self.tp_group))

    def whole(self, values: Tensor) -> Tensor:
        """[B, T, ...] of this rank's [B, t, ...]."""
        return whole_positions(values, self.positions, self.cp_group)

    def own(self, values: Tensor) -> Tensor:
        """[B, t, ...] of the whole rows' [B, T, ...]."""
        return values.index_select(1, self.positions)


def _logits(student: _Student, data: Data, loss_fn: LossFunction) -> dict[str, Any]:
    return {"logits": student.whole(student.logits)}


def _next_token_logprobs(student: _Student, data: Data, loss_fn: LossFunction) -> dict[str, Any]:
    labels, trained = _trained_labels(student, data)
    if student.head is None:
        logits = wide(student.rows)
        found = logits_at(logits, labels[..., None], student.tp_group) - log_partition(
            logits, student.tp_group
        )
        logprobs = found.squeeze(-1)
    else:
        logprobs = next_token_logprobs(
            student.rows.flatten(0, 1),
            student.head,
            torch.where(trained, labels, -1).flatten(),
            groups=Groups(tensor=student.tp_group),
        ).view(labels.shape)
    return {"next_token_logprobs": student.whole(logprobs)[:, :-1]}


def _trained_labels(student: _Student, data: Data) -> tuple[Tensor, Tensor]:
    """The token after each of this rank's positions, int64 [B, t], and whether it is trained.

    Without a mask all that exist are.

    Raises:
        LossError: A trained one is none of the student's tokens: no logit says anything of it.
    """
    mask = torch.ones_like(data["input_ids"]) if "token_mask" not in data else data["token_mask"]
    trained = next_of(mask, 0) > 0
    if "sample_mask" in data:
        trained &= (data["sample_mask"] > 0)[:, None]
    labels, trained = student.own(next_of(data["input_ids"], 0)), student.own(trained)
    unknown = trained & ((labels < 0) | (labels >= student.vocabulary))
    if unknown.any():
        row, at = unknown.nonzero()[0].tolist()
        raise LossError(
            "a trained token lies beyond the student's head",
            where=f"row {row}, token {int(student.positions[at]) + 1}",
            got=int(labels[row, at]),
            expected=f"0 to {student.vocabulary - 1}",
            fix="mask it in token_mask",
        )
    return labels, trained


def _distillation(student: _Student, data: Data, loss_fn: LossFunction) -> dict[str, Any]:
    columns, ids = data["teacher_topk_logits"], data["teacher_topk_indices"]
    if columns.shape[-1] == 0:
        raise LossError("the teacher has no columns", where="teacher_topk_logits", got=tuple(columns.shape))
    logits = wide(student.logits)
    present = ~absent(columns) & (ids >= 0) & (ids < student.vocabulary)
    mine = student.own(present)
    found = logits_at(logits, student.own(torch.where(present, ids, 0)), student.tp_group)
    inputs: dict[str, Any] = {"H_all": None}
    if isinstance(loss_fn, DistillationLossFn) and loss_fn.cfg.zero_outside_topk:
        found = torch.where(mine, found - log_partition(logits, student.tp_group), -torch.inf)
        inputs["H_all"] = student.whole(negative_entropy(logits, student.tp_group))[:, :-1]
    else:
        found = log_softmax_of(found, mine)
    teacher = log_softmax_of(columns.to(found.dtype), present)
    return inputs | {
        "student_topk_logprobs": student.whole(found)[:, :-1],
        "teacher_topk_logprobs": teacher[:, :-1],
    }


def _cross_tokenizer(student: _Student, data: Data, loss_fn: LossFunction) -> dict[str, Any]:
    _trained_labels(student, data)
    groups = Groups(student.tp_group, student.cp_group)
    teachers: dict[int, Teacher] = {}
    aligned: dict[int, LocalizedAlignment] = {}
    for i in range(teacher_count(data)):
        teachers[i], at = teacher_of(data, i, student.positions, groups)
        aligned[i] = localize(data, i, student.positions, at)
    logits = student.logits
    return {
        "logits": logits,
        "student_logits_contig": logits,
        "teacher_full_logits_by_idx": teachers,
        "aligns_by_idx": aligned,
    }


def _draft(student: _Student, data: Data, d2t: Tensor | None) -> dict[str, Any]:
    teacher = student.whole(student.logits.detach())
    drafted = student.whole(data["student_logits"])
    own = torch.arange(drafted.shape[-1], device=teacher.device)
    own += rank_in(student.tp_group) * len(own)
    ids = (
        data.get("student_vocab_indices") if d2t is None else torch.arange(len(d2t), device=d2t.device) + d2t
    )
    if ids is not None:
        teacher = whole_vocabulary(teacher, student.tp_group)[..., ids[own]]
    return {
        "teacher_logits": next_of(teacher, 0),
        "student_logits": drafted,
        "token_mask": next_of(data["token_mask"], 0),
    }


_MADE: dict[LossInputType, Callable[[_Student, Data, LossFunction], dict[str, Any]]] = {
    LossInputType.LOGIT: _logits,
    LossInputType.LOGPROB: _next_token_logprobs,
    LossInputType.DISTILLATION: _distillation,
    LossInputType.DISTILLATION_CROSS_TOKENIZER: _cross_tokenizer,
}


def _length(data: Data, logits: Tensor, cp_group: Group | None) -> int:
    """T; a batch without ids or masks is as long as the student's rows."""
    for name in ("input_ids", "token_mask"):
        if name in data:
            return int(data[name].shape[1])
    return logits.shape[1] * size_of(cp_group)

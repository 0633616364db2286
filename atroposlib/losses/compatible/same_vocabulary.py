"""A teacher with the student's tokenizer: KL at each position, over some columns or all.

With full logits both sides are renormalised over the columns, so mass elsewhere is not seen; columns that a
server ships are compared with one more event, any other token. The sum over trained tokens, times T^2, is
divided by the step's trained tokens, as the CE's is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from atroposlib.losses.compatible.cross_tokenizer_config import CrossTokenizerDistillationLossConfig
from atroposlib.losses.compatible.masked import EPSILON
from atroposlib.losses.compatible.sparse_columns import (
    SparseColumns,
    dense,
    highest_columns,
    log_softmax_of,
    logprobs_at,
    with_rest,
)
from atroposlib.losses.compatible.terms import Term, View, divergence, over_positions, shipped_metrics
from atroposlib.losses.groups import summed


def same_vocabulary(view: View, tokens: Tensor, cfg: CrossTokenizerDistillationLossConfig) -> Term:
    """The term of one teacher; ``tokens`` is the step's count of trained ones."""
    if isinstance(view.teacher, SparseColumns):
        logprobs = dense(view.teacher, view.width)
        events = with_rest(logprobs, ~torch.isneginf(logprobs), view.width)
        return _kl(view, _student_events(view.student, events), events, tokens, cfg)
    if cfg.columns_per_row:
        whole = dense(view.teacher, view.width)
        columns = whole.topk(min(cfg.vocab_topk, view.width), -1).indices
        return _kl(view, view.student.gather(-1, columns), whole.gather(-1, columns), tokens, cfg)
    columns = highest_columns(view.teacher, view.width, cfg.vocab_topk, view.groups)
    teacher = dense(view.teacher, view.width, columns)
    return _kl(view, view.student.index_select(-1, columns), teacher, tokens, cfg)


def averaged_teachers(
    views: list[View], weights: list[float], tokens: Tensor, cfg: CrossTokenizerDistillationLossConfig
) -> Term:
    """One KL over the whole vocabulary, against the weighted mean of the teachers' logits.

    Where a teacher ships columns, the events are those that every teacher has, and any other token.
    """
    width = min(view.width for view in views)
    logits = [dense(view.teacher, width) for view in views]
    student = views[0].student[..., :width]
    if any(isinstance(view.teacher, SparseColumns) for view in views):
        shared = ~torch.isneginf(torch.stack(logits).amin(0))
        logits = [with_rest(logprobs_at(view.teacher, width, 1.0), shared, width) for view in views]
        student = _student_events(views[0].student, logits[0])
    total = sum(weights)
    absent = torch.isneginf(torch.stack(logits).amin(0))
    mean = torch.zeros_like(logits[0])
    for each, weight in zip(logits, weights, strict=True):
        mean = mean + torch.where(absent, 0.0, each) * (weight / total)
    return _kl(views[0], student, mean.masked_fill(absent, -torch.inf), tokens, cfg)


def _student_events(logits: Tensor, teacher: Tensor) -> Tensor:
    """[B, t, W + 1]: the student's logits at W ids, and of any other token; -inf where the event is not one.

    The last is a log sum over the other tokens themselves: as a difference from 1 it would be rounding noise
    where a confident student lives.

    Args:
        logits: [B, t, V_s].
        teacher: [B, t, W + 1] of the same events.
    """
    width = teacher.shape[-1] - 1
    shared = functional.pad(~torch.isneginf(teacher[..., :width]), (0, logits.shape[-1] - width))
    nothing = shared.all(-1, keepdim=True)
    others = torch.where(shared & ~nothing, -torch.inf, logits).logsumexp(-1, keepdim=True)
    listed = torch.where(shared, logits, -torch.inf)[..., :width]
    return torch.cat([listed, torch.where(nothing, -torch.inf, others)], -1)


def _kl(
    view: View, student: Tensor, teacher: Tensor, tokens: Tensor, cfg: CrossTokenizerDistillationLossConfig
) -> Term:
    """From logits [B, t, k] of the same events on both sides."""
    present = ~torch.isneginf(teacher)
    values = divergence(
        log_softmax_of(student / cfg.temperature, ~torch.isneginf(student)),
        log_softmax_of(teacher / cfg.temperature, present),
        present,
        reverse=cfg.reverse_kl,
        proper=cfg.proper_divergence,
    )
    metrics = shipped_metrics(view)
    if metrics:
        trained = view.align.student_label_mask > 0
        untold = (trained & ~present[..., :-1].any(-1)).sum()
        metrics["rows_without_columns"] = summed(untold, view.groups.context)
    by_row = over_positions(values, view.align, view.groups) * cfg.temperature**2
    return Term(by_row, tokens + EPSILON, metrics)

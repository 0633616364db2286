"""How several teachers make one distillation term: weighed, of averaged logits, or of one teacher chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible.cross_tokenizer_config import CrossTokenizerDistillationLossConfig
from atroposlib.losses.compatible.same_vocabulary import averaged_teachers
from atroposlib.losses.compatible.teacher_scores import scores
from atroposlib.losses.compatible.teacher_terms import Batch, TeacherTerms
from atroposlib.losses.compatible.terms import Term

Joined = tuple[Tensor, dict[str, Any]]


def summed_teachers(teachers: TeacherTerms, batch: Batch) -> Joined:
    """Sum of weight times term, times log V_t / log min V_t where that is asked for."""
    weights = _weights(teachers.cfg, batch)
    terms = [teachers.term(i, batch) for i in range(len(weights))]
    values = [
        term.value(weight) * _by_vocabulary(teachers.cfg, i)
        for i, (term, weight) in enumerate(zip(terms, weights, strict=True))
    ]
    metrics = {f"weight_t{i}": weight.mean() for i, weight in enumerate(weights)}
    return torch.stack(values).sum(), metrics | _of_teachers(dict(enumerate(terms)))


def averaged_logits(teachers: TeacherTerms, batch: Batch) -> Joined:
    """One KL against the mean of the teachers' logits.

    Where they cannot be averaged, the sum of the terms by the weights as they stand, not divided by their
    sum: as in NeMo RL, but counted.
    """
    cfg = teachers.cfg
    widths = {view.teacher.shape[-1] for view in batch.views if isinstance(view.teacher, Tensor)}
    if all(matrix is None for matrix in teachers.matrices) and len(widths) <= 1:
        term = averaged_teachers(batch.views, cfg.weights, batch.tokens, cfg)
        return term.value(), {"averaged_logits_fallback": torch.tensor(0)}
    if cfg.refuse_averaged_fallback:
        raise LossError(
            "the teachers' logits cannot be averaged",
            got=f"widths {sorted(widths)}",
            expected="the student's tokenizer and one width",
        )
    total, metrics = summed_teachers(teachers, batch)
    return total, metrics | {"averaged_logits_fallback": torch.tensor(1)}


def selected_teacher(teachers: TeacherTerms, batch: Batch) -> Joined:
    """The term of the teacher to whom its own tokens are the most likely."""
    by_row = teachers.cfg.scores_per_sequence
    table = torch.stack([scores(view, "ce", batch.dp_group, by_row=by_row) for view in batch.views])
    chosen = table.argmax(0)
    if not by_row:
        i = int(chosen)
        term = teachers.term(i, batch)
        return term.value(), _of_teachers({i: term}) | {"selected_teacher": chosen}
    terms = [teachers.term(i, batch) for i in range(len(batch.views))]
    values = [term.value((chosen == i).to(term.by_row.dtype)) for i, term in enumerate(terms)]
    metrics = {f"selected_t{i}": (chosen == i).sum() for i in range(len(terms))}
    return torch.stack(values).sum(), metrics | _of_teachers(dict(enumerate(terms)))


MODES: dict[str, Callable[[TeacherTerms, Batch], Joined]] = {
    "sum": summed_teachers,
    "averaged_logits": averaged_logits,
    "select_teacher": selected_teacher,
}


def _weights(cfg: CrossTokenizerDistillationLossConfig, batch: Batch) -> list[Tensor]:
    """Of each teacher: a scalar, or [B] where each row has its own."""
    if cfg.sum_weights_metric is None:
        return [batch.views[0].student.new_tensor(weight) for weight in cfg.weights]
    table = [
        scores(view, cfg.sum_weights_metric, batch.dp_group, by_row=cfg.scores_per_sequence)
        * _by_vocabulary(cfg, i)
        for i, view in enumerate(batch.views)
    ]
    return list(torch.softmax(cfg.alpha * torch.stack(table), 0))


def _by_vocabulary(cfg: CrossTokenizerDistillationLossConfig, i: int) -> float:
    if not cfg.normalize_teacher_by_vocab or cfg.teacher_vocab_sizes is None:
        return 1.0
    return math.log(cfg.teacher_vocab_sizes[i]) / math.log(min(cfg.teacher_vocab_sizes))


def _of_teachers(terms: dict[int, Term]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for i, term in terms.items():
        metrics[f"kl_loss_t{i}"] = term.value().detach()
        metrics |= {f"{name}_t{i}": value for name, value in term.metrics.items()}
    return metrics

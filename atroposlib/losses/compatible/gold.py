"""Gold: KL over the tokens that both vocabularies have, and sorted L1 over those that only one has.

For each pair of chunks, both sides are the mean over their tokens of log softmax(z / T). The value is
T^2 (sum over common tokens of q log(q / p) + sum over ranks r of |p_r - q_r|), p_r and q_r the sorted
probabilities of the uncommon ones, as many as both sides have and at most ``uncommon_topk``. Source: NeMo
RL's X-Token; x-token is this with more common tokens. A mean of log probabilities does not sum to 1, and the
common tokens do not either: the first sum can be negative, and falls when the student moves mass onto them.
``proper`` adds p - q to each of its terms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.losses.compatible.chunk_average import Chunks
from atroposlib.losses.compatible.cross_tokenizer_config import CrossTokenizerDistillationLossConfig
from atroposlib.losses.compatible.exact_map import ExactMap
from atroposlib.losses.compatible.sparse_columns import logprobs_at
from atroposlib.losses.compatible.terms import Term, View, chunk_metrics, divergence


def gold(view: View, chunks: Chunks, same: ExactMap, cfg: CrossTokenizerDistillationLossConfig) -> Term:
    """The term of one teacher with another tokenizer."""
    context = view.groups.context
    student = chunks.student_means(torch.log_softmax(view.student / cfg.temperature, -1), context)
    logprobs = logprobs_at(view.teacher, view.width, cfg.temperature)
    teacher = chunks.teacher_means(logprobs, context)
    p, q = student[..., same.common_student], teacher[..., same.common_teacher]
    present = ~torch.isneginf(q)
    kl = divergence(p, q, present, reverse=cfg.reverse_kl, proper=cfg.proper_divergence)
    l1 = _sorted_l1(
        student[..., same.uncommon_student], teacher[..., same.uncommon_teacher], cfg.uncommon_topk
    )
    valid = chunks.compared(context) & (view.align.sample_mask > 0)[:, None]
    kl, l1, count = torch.where(valid, kl, 0.0), torch.where(valid, l1, 0.0), valid.sum()
    metrics = {
        "kl_common": kl.detach().sum() / count.clamp_min(1),
        "l1_uncommon": l1.detach().sum() / count.clamp_min(1),
        "num_valid_chunks": count,
        "proj_accuracy": _accuracy(p, q, valid),
        **chunk_metrics(view, valid, ~torch.isneginf(teacher)),
    }
    return Term((kl + l1).sum(1) * cfg.temperature**2, count, metrics)


def _sorted_l1(student: Tensor, teacher: Tensor, most: int) -> Tensor:
    """[B, C]: L1 of the largest probabilities, from log probabilities [B, C, v] of each side.

    An absent column is at most as probable as those that are there: only as many ranks as a chunk has
    columns are compared.
    """
    ranks = min(student.shape[-1], teacher.shape[-1], most)
    p, q = (side.topk(ranks, -1).values for side in (student, teacher))
    present = ~torch.isneginf(q)
    return torch.where(present, (p.exp() - torch.where(present, q, 0.0).exp()).abs(), 0.0).sum(-1)


def _accuracy(student: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """Share of valid chunks whose most probable common token is the same on both sides."""
    if not student.shape[-1]:
        return torch.zeros((), device=student.device)
    right = student.detach().argmax(-1) == teacher.argmax(-1)
    return (right & valid).sum() / valid.sum().clamp_min(1).to(student.dtype)

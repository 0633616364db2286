"""P-KL: the student's probabilities, projected into the teacher's vocabulary, against the teacher's.

With M the projection and K the columns, for each pair of chunks: P is the mean over the student's tokens of
softmax(z / T) M, renormalised over K; Q the exponential of the mean over the teacher's tokens of
log softmax over K of its z / T. The chunk's value is T^2 sum over K of Q log(Q / P). Source: NeMo RL's
X-Token. Q, a geometric mean, sums to less than 1, and P is an arithmetic one: the value can be negative, and
is not 0 for equal models. ``proper`` takes the mean of probabilities on both sides.

Of columns that a server ships, a chunk compares those that all its teacher tokens have, and any other token
as one more event, neither renormalised: the same with all V columns, and with fewer nothing is unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.losses.compatible.chunk_average import Chunks
from atroposlib.losses.compatible.cross_tokenizer_config import CrossTokenizerDistillationLossConfig
from atroposlib.losses.compatible.projection_matrix import ProjectionMatrix
from atroposlib.losses.compatible.sparse_columns import (
    SparseColumns,
    dense,
    highest_columns,
    log_softmax_of,
    with_rest,
)
from atroposlib.losses.compatible.terms import Term, View, chunk_metrics, divergence

EPSILON = 1e-10
"""Added to the student's probabilities before the logarithm, as NeMo RL does."""


@dataclass(frozen=True, slots=True)
class _Sides:
    """What is compared, before it is made a distribution of each chunk.

    Attributes:
        teacher: [B, u, k] logits of the columns at each token, or their log probabilities where shipped.
        student: [B, C, k] projected probabilities of the columns, averaged over the chunk.
        outside: [B, C] of all other columns together.
    """

    teacher: Tensor
    student: Tensor
    outside: Tensor


def p_kl(
    view: View, chunks: Chunks, matrix: ProjectionMatrix, cfg: CrossTokenizerDistillationLossConfig
) -> Term:
    """The term of one teacher with another tokenizer; B rows, u of its positions, C chunks, k columns."""
    context = view.groups.context
    sides = _sides(view, chunks, matrix, cfg)
    if isinstance(view.teacher, SparseColumns):
        teacher = _shipped_means(view, chunks, sides.teacher, cfg)
        student = _student_events(sides, teacher, view.width)
        columns = teacher[..., :-1]
    else:
        teacher = columns = _means(view, chunks, sides.teacher, cfg)
        student = _log_shares(sides.student)
    compared = chunks.compared(context, correct_only=cfg.exact_token_match_only)
    valid = compared & (view.align.sample_mask > 0)[:, None]
    present = ~torch.isneginf(teacher) & compared[..., None]
    values = divergence(student, teacher, present, reverse=cfg.reverse_kl, proper=cfg.proper_divergence)
    metrics = {
        "num_valid_pairs": valid.sum(),
        "proj_accuracy": _accuracy(student, teacher, valid, compared),
        **chunk_metrics(view, valid, ~torch.isneginf(columns)),
    }
    return Term(torch.where(valid, values, 0.0).sum(1) * cfg.temperature**2, valid.sum(), metrics)


def _sides(
    view: View, chunks: Chunks, matrix: ProjectionMatrix, cfg: CrossTokenizerDistillationLossConfig
) -> _Sides:
    probabilities = torch.softmax(view.student / cfg.temperature, -1)[..., : matrix.student_size]
    averaged = chunks.student_means(probabilities, view.groups.context)
    if averaged.shape[-1] < matrix.student_size:
        matrix = matrix.rows(0, averaged.shape[-1])
    if not cfg.columns_per_row:
        columns = highest_columns(view.teacher, view.width, cfg.vocab_topk, view.groups)
        others = matrix.weights_outside(columns).to(averaged.dtype)
        projected = matrix.columns(columns).projected(averaged)
        return _Sides(dense(view.teacher, view.width, columns), projected, averaged @ others)
    projected, logits = matrix.projected(averaged), dense(view.teacher, view.width)
    means = chunks.teacher_means(log_softmax_of(logits, ~torch.isneginf(logits)), view.groups.context)
    columns = means.topk(min(cfg.vocab_topk, view.width), -1).indices
    of_tokens = columns.gather(1, _chunk_of(chunks, columns.shape[-1]))
    outside = projected.scatter(-1, columns, 0.0).sum(-1)
    return _Sides(logits.gather(-1, of_tokens), projected.gather(-1, columns), outside)


def _chunk_of(chunks: Chunks, columns: int) -> Tensor:
    """int64 [B, u, k]: where a token's chunk stands among the chunks; any for a token in none."""
    return chunks.teacher_id.clamp_min(0)[..., None].expand(-1, -1, columns)


def _means(view: View, chunks: Chunks, logits: Tensor, cfg: CrossTokenizerDistillationLossConfig) -> Tensor:
    """[B, C, k]: log Q of full logits; -inf where a column has probability 0 at a token of the chunk."""
    context = view.groups.context
    if not cfg.proper_divergence:
        shares = log_softmax_of(logits / cfg.temperature, ~torch.isneginf(logits))
        return chunks.teacher_means(shares, context)
    whole = (dense(view.teacher, view.width) / cfg.temperature).logsumexp(-1, keepdim=True)
    means = chunks.teacher_means((logits / cfg.temperature - whole).exp(), context)
    return (means / means.sum(-1, keepdim=True).clamp_min(EPSILON)).log()


def _shipped_means(
    view: View, chunks: Chunks, logprobs: Tensor, cfg: CrossTokenizerDistillationLossConfig
) -> Tensor:
    """[B, C, k + 1]: log Q of the columns that all tokens of a chunk have, and of any other token."""
    context = view.groups.context
    shared = ~torch.isneginf(chunks.teacher_means(logprobs, context))
    events = with_rest(logprobs, shared.gather(1, _chunk_of(chunks, logprobs.shape[-1])), view.width)
    if cfg.proper_divergence:
        return chunks.teacher_means(events.exp(), context).log()
    return chunks.teacher_means(events, context)


def _student_events(sides: _Sides, teacher: Tensor, width: int) -> Tensor:
    """[B, C, k + 1]: log P of the teacher's columns, and of any other token: a sum of its own terms."""
    shared = ~torch.isneginf(teacher[..., :-1])
    others = torch.where(shared, 0.0, sides.student).sum(-1) + sides.outside
    # A teacher with every column has no other token.
    others = torch.where(shared.sum(-1) >= width, 0.0, others)
    kept = torch.where(shared, sides.student, 0.0)
    return _log_shares(torch.cat([kept, others[..., None]], -1))


def _log_shares(mass: Tensor) -> Tensor:
    """[..., k]: the logarithm of each one's share of the sum."""
    return (mass / (mass.sum(-1, keepdim=True) + EPSILON) + EPSILON).log()


def _accuracy(student: Tensor, teacher: Tensor, valid: Tensor, compared: Tensor) -> Tensor:
    """Share of chunks whose most probable column is the same on both sides; 0 where none is valid.

    Chunks of rows that are not trained count too, as in NeMo RL.
    """
    same = (student.detach().argmax(-1) == teacher.argmax(-1)) & compared
    return torch.where(valid.any(), same.sum() / compared.sum().clamp_min(1).to(student.dtype), 0.0)

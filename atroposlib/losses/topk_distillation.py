"""Forward KL(teacher || student) from a teacher's top-k: every present column plus one tail event.

The events of a row are "token k" for each present id k, and "any other token". With q the teacher's
probabilities, q_T = max(0, 1 - sum q) and p the student's, a row's loss is, in nats,

    sum_k q_k (log q_k - log p_k) + q_T (log q_T - log p_T)

This is a lower bound of the KL over the whole vocabulary, never negative, and 0 exactly where the two
models agree on every event.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import WireError
from atroposlib.types import ABSENT_LOGPROB

Metrics = dict[str, Tensor]
"""Detached scalars that are sums over rows, so that they add up over micro-batches."""


def topk_distillation_from_logits(
    logits: Tensor, ids: Tensor, logprobs: Tensor, *, global_count: int, check: bool = False
) -> tuple[Tensor, Metrics]:
    """The tail KL of one micro-batch, as its share of the mean over the whole optimizer step.

    Args:
        logits: [N, V] of the student at the positions that predict each row's token, of any float dtype;
            computed in float32 (float64 stays float64).
        ids: integer [N, K] token ids. A negative id is absent, wherever it stands in its row; ids from V
            on belong to the tail.
        logprobs: [N, K] of the teacher in nats; -inf and everything from -9999 down is absent.
        global_count: Rows with a target in the whole optimizer step, over all micro-batches. Losses and
            gradients of the micro-batches then simply add up.
        check: Look for ids that stand twice in a row first: their probability would count twice.

    Returns:
        The loss (scalar, nats a row: sum over rows / ``global_count``; a zero connected to ``logits`` when
        no row has a target), and sums: ``loss`` (nats), ``rows`` (with a target), ``untrained_rows``,
        ``captured_mass`` (teacher probability on the present columns), ``out_of_vocabulary`` (entries that
        went to the tail).

    Raises:
        WireError: With ``check``, when a row lists an id twice.
    """
    vocabulary = logits.shape[-1]
    listed = (ids >= 0) & (logprobs > ABSENT_LOGPROB)
    present = listed & (ids < vocabulary)
    has_target = present.any(-1)
    if check:
        _refuse_duplicates(ids, present)
    accumulate = torch.promote_types(logits.dtype, torch.float32)
    log_head, log_tail = _student_events(logits.to(accumulate), ids, present)
    row_loss, captured = _forward_kl(log_head, log_tail, logprobs, present)
    loss_sum = torch.where(has_target, row_loss, 0.0).sum().to(accumulate)
    metrics = {
        "loss": loss_sum.detach(),
        "rows": has_target.sum(),
        "untrained_rows": (~has_target).sum(),
        "captured_mass": captured.sum(),
        "out_of_vocabulary": (listed & ~present).sum(),
    }
    return loss_sum / global_count, metrics


def _student_events(logits: Tensor, ids: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of the student: [N, K] of the listed tokens, [N] of all others together.

    The tail is the sum of its own exponentials. As 1 - head it would be rounding noise below 1e-7, just
    where a confident student lives. Absent columns, and rows without any present one, hold finite
    numbers that mean nothing.
    """
    first = ids.gather(-1, present.to(torch.uint8).argmax(-1, keepdim=True)).clamp(0, logits.shape[-1] - 1)
    # Padding repeats an id of its own row: writing to token 0 would take a real token out of the tail.
    columns = torch.where(present, ids, first).long()
    counted = present | ~present.any(-1, keepdim=True)
    head = logits.gather(-1, columns)
    tail = logits.scatter(-1, columns, -torch.inf)
    no_tail = torch.zeros_like(tail[:, :1], dtype=torch.bool)
    if ids.shape[-1] >= logits.shape[-1]:
        # The logsumexp of an empty tail has no gradient but NaN; its event has no probability to move.
        no_tail = present.sum(-1, keepdim=True) >= logits.shape[-1]
        tail = torch.where(no_tail, 0.0, tail)
    log_tail = tail.logsumexp(-1, keepdim=True)
    log_head_sum = torch.where(counted, head, -torch.inf).logsumexp(-1, keepdim=True)
    log_total = torch.where(no_tail, log_head_sum, torch.logaddexp(log_head_sum, log_tail))
    return head - log_total, torch.where(no_tail, 0.0, log_tail - log_total).squeeze(-1)


def _forward_kl(
    log_head: Tensor, log_tail: Tensor, logprobs: Tensor, present: Tensor
) -> tuple[Tensor, Tensor]:
    """KL of every row [N] (float64, nats) and the teacher's probability on its present columns [N].

    Absent entries leave before any arithmetic, so 0 * -inf never arises. The teacher's tail is a small
    difference of numbers near 1, and [N, K] values cost nothing: these few are float64.
    """
    teacher = torch.where(present, logprobs.double(), 0.0)
    probability = torch.where(present, teacher.exp(), 0.0)
    captured = probability.sum(-1)
    tail_probability = (1.0 - captured).clamp_min(0.0)
    student = torch.where(present, log_head.double(), 0.0)
    head_kl = (probability * (teacher - student)).sum(-1)
    tail_kl = torch.xlogy(tail_probability, tail_probability) - tail_probability * log_tail.double()
    return head_kl + tail_kl, captured


def _refuse_duplicates(ids: Tensor, present: Tensor) -> None:
    ordered = torch.where(present, ids, -1).sort(-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        row = int(twice.any(-1).nonzero()[0])
        raise WireError(
            "a token id stands twice among the teacher's columns", where=f"row {row}", got=ids[row].tolist()
        )

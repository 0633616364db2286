"""The losses that ``losses.py`` measures: ours, naive torch, and those of other libraries where they import.

A target takes hidden states [N, H], the head's weight [V, H], a teacher's ids and logprobs [N, K] and a mask
bool [N] of trained positions, and gives the mean over trained positions of KL(teacher || student) on the
K + 1 events "token k" and "any other token". Dense ones of other libraries compute another quantity, for a
teacher of the same size: only their time and memory compare.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from atroposlib.losses.head import Head
from atroposlib.losses.topk_distillation import topk_distillation

Target = Callable[..., Tensor]


def naive(
    hidden: Tensor, weight: Tensor, ids: Tensor, logprobs: Tensor, mask: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """All positions through the head, a log_softmax over the vocabulary, the tail as 1 - head."""
    logits = functional.linear(hidden, weight)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    log_p = functional.log_softmax(logits, -1)
    present = (ids >= 0) & (logprobs > -torch.inf)
    student = torch.where(present, log_p.gather(-1, ids.clamp_min(0)), -torch.inf)
    log_tail = torch.log(-torch.expm1(student.logsumexp(-1).clamp_max(-1e-7)))
    q = torch.where(present, logprobs.exp(), 0.0)
    q_tail = (1.0 - q.sum(-1)).clamp_min(0.0)
    difference = torch.where(present, logprobs, 0.0) - torch.where(present, student, 0.0)
    rows = (q * difference).sum(-1) + torch.xlogy(q_tail, q_tail) - q_tail * log_tail
    return torch.where(mask, rows, 0.0).sum() / mask.sum().clamp_min(1)


def exact(hidden: Tensor, weight: Tensor, ids: Tensor, logprobs: Tensor, mask: Tensor) -> Tensor:
    """The same with the tail as the sum of its own terms; the reference, in float64. No absent columns."""
    log_p = functional.log_softmax(functional.linear(hidden, weight), -1)
    log_tail = log_p.scatter(-1, ids, -torch.inf).logsumexp(-1)
    q = logprobs.exp()
    q_tail = (1.0 - q.sum(-1)).clamp_min(0.0)
    rows = (q * (logprobs - log_p.gather(-1, ids))).sum(-1) + q_tail * (q_tail.log() - log_tail)
    return torch.where(mask, rows, 0.0).sum() / mask.sum()


def ours(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    logprobs: Tensor,
    mask: Tensor,
    *,
    temperature: float = 1.0,
    recompute: bool = False,
) -> Tensor:
    """``topk_distillation``, whose T^2 is divided out."""
    loss, _ = topk_distillation(
        hidden,
        Head(weight),
        ids.masked_fill(~mask[:, None], -1),
        logprobs,
        temperature=temperature,
        teacher_temperature=temperature,
        recompute=recompute,
        global_count=max(1, int(mask.sum())),
    )
    return loss / temperature**2


ours_recompute = functools.partial(ours, recompute=True)


def trl_sparse(
    hidden: Tensor, weight: Tensor, ids: Tensor, logprobs: Tensor, mask: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """TRL's chunked loss of an asynchronous teacher's top-k (1.16); its tail is 1 - head."""
    from trl.experimental.async_distillation import async_distillation_trainer as trainer

    kept_ids, kept_logprobs = ids[mask], logprobs[mask].float()
    total = trainer._chunked_jsd_loss(
        hidden[mask],
        weight,
        None,
        1.0,
        None,
        kept_ids,
        kept_logprobs,
        kept_ids >= 0,
        0.0,
        temperature,
        True,
        None,
        1,
        256,
    )
    return total[0] / mask.sum().clamp_min(1)


def liger_dense(
    hidden: Tensor, weight: Tensor, ids: Tensor, logprobs: Tensor, mask: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """Liger's chunked forward KL (0.8) to a dense teacher: two heads, every position."""
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    labels = torch.where(mask, 0, -100)
    loss = LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0,
        weight_soft_loss=1.0,
        beta=0.0,
        temperature=temperature,
        compiled=hidden.is_cuda,
        chunk_size=256,
    )
    result: Tensor = loss(hidden, weight, hidden.detach().roll(1, 0), weight.detach(), labels)
    return result


TARGETS: dict[str, Target] = {
    "naive": naive,
    "ours": ours,
    "ours_recompute": ours_recompute,
    "trl_sparse": trl_sparse,
    "liger_dense": liger_dense,
}
OTHER_QUANTITY = {"liger_dense"}
"""Targets whose value and gradient do not compare."""

MODULES = {"trl_sparse": "trl", "liger_dense": "liger_kernel"}
"""What has to be importable for a target."""

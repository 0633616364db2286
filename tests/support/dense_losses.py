"""The losses of sparse teachers written out token by token in float64, for comparison with the real ones."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

VOCABULARY = 23


@dataclass(frozen=True)
class World:
    """A small student and a teacher's columns with everything odd in them; float64.

    Attributes:
        hidden, weight, bias: [9, 6], [23, 6], [23], which take gradients.
        ids, logprobs: [9, 5]: row 1 has an absent column in front, row 2 one at -inf, row 3 an id beyond the
            head, row 4 nothing; token 0 is listed in row 5 only.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor
    ids: Tensor
    logprobs: Tensor

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.hidden, self.weight, self.bias

    def logits(self, *, scale: float = 1.0, soft_cap: float | None = None) -> Tensor:
        raw = scale * (self.hidden @ self.weight.T + self.bias)
        return raw if soft_cap is None else soft_cap * torch.tanh(raw / soft_cap)


def world(seed: int = 0) -> World:
    draw = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (
        torch.randn(*shape, generator=draw, dtype=torch.float64).requires_grad_()
        for shape in ((9, 6), (VOCABULARY, 6), (VOCABULARY,))
    )
    teacher = torch.log_softmax(torch.randn(9, VOCABULARY, generator=draw, dtype=torch.float64) * 2, -1)
    ids = torch.stack([torch.randperm(VOCABULARY - 1, generator=draw)[:5] + 1 for _ in range(9)])
    ids[5, 2] = 0
    logprobs = teacher.gather(-1, ids)
    ids[1, 0], logprobs[1, 0] = -1, -9999.0
    logprobs[2, 3] = -torch.inf
    ids[3, 1] = VOCABULARY + 4
    ids[4] = -1
    return World(hidden, weight, bias, ids, logprobs)


@dataclass(frozen=True)
class Rule:
    """A loss's settings, as its own signature names them."""

    divergence: str = "forward"
    support: str = "tail"
    temperature: float = 1.0
    teacher_temperature: float = 1.0
    mixed_weight: float = 0.5
    beta: float = 0.5


def columns_of(ids: Tensor, logprobs: Tensor, vocabulary: int) -> list[dict[int, float]]:
    """The teacher's logprobs by id, row by row."""
    return [
        {i: lp for i, lp in zip(row_ids, row_logprobs, strict=True) if 0 <= i < vocabulary and lp > -9999.0}
        for row_ids, row_logprobs in zip(ids.tolist(), logprobs.tolist(), strict=True)
    ]


def dense_topk(
    logits: Tensor, ids: Tensor, logprobs: Tensor, rule: Rule, masked: Set[int] = frozenset()
) -> Tensor:
    """Sum over rows, from logits [N, V]."""
    vocabulary = logits.shape[-1]
    total = logits.sum() * 0
    for z, columns in zip(logits / rule.temperature, columns_of(ids, logprobs, vocabulary), strict=True):
        kept = [j for j in range(vocabulary) if j not in masked]
        exponentials = z.exp()
        p = exponentials / exponentials[kept].sum()
        taken = sum(math.exp(lp) for i, lp in columns.items() if i in masked)
        listed = {i: math.exp(lp) / (1.0 - taken) for i, lp in columns.items() if i not in masked}
        if listed:
            total = total + row_divergence(p, listed, kept, rule)
    return total * rule.temperature**2


def row_divergence(p: Tensor, listed: dict[int, float], kept: list[int], rule: Rule) -> Tensor:
    others = [j for j in kept if j not in listed]
    if rule.support == "tail":
        pairs = [(torch.tensor(q, dtype=torch.float64), p[i]) for i, q in listed.items()]
        if others:
            rest = max(0.0, 1.0 - sum(listed.values()))
            pairs.append((torch.tensor(rest, dtype=torch.float64), p[others].sum()))
        return divergence(pairs, rule)
    warmed = {i: q ** (rule.teacher_temperature / rule.temperature) for i, q in listed.items()}
    q_sum = sum(warmed.values())
    if rule.support == "renormalized":
        p_sum = p[list(listed)].sum()
        return divergence(
            [(torch.tensor(q / q_sum, dtype=torch.float64), p[i] / p_sum) for i, q in warmed.items()], rule
        )
    forward = sum(q / q_sum * (math.log(q / q_sum) - p[i].log()) for i, q in warmed.items())
    reverse = sum(p[i] * (p[i].log() - math.log(q / q_sum)) for i, q in warmed.items())
    reverse = reverse + sum(p[j] * (p[j].log() + 100.0) for j in others)
    weight = {"forward": 1.0, "reverse": 0.0, "mixed": rule.mixed_weight}[rule.divergence]
    return weight * torch.as_tensor(forward) + (1 - weight) * torch.as_tensor(reverse)


def divergence(pairs: list[tuple[Tensor, Tensor]], rule: Rule) -> Tensor:
    """Of the probabilities (q, p) of each event."""
    q, p = (torch.stack(side) for side in zip(*pairs, strict=True))
    if rule.divergence == "jsd":
        m = rule.beta * q + (1 - rule.beta) * p
        raw = rule.beta * kl(q, m) + (1 - rule.beta) * kl(p, m)
        return raw / (rule.beta * (1 - rule.beta))
    weight = {"forward": 1.0, "reverse": 0.0, "mixed": rule.mixed_weight}[rule.divergence]
    result = torch.zeros((), dtype=torch.float64)
    if weight > 0:
        result = result + weight * kl(q, p)
    return result + (1 - weight) * kl(p, q) if weight < 1 else result


def kl(a: Tensor, b: Tensor) -> Tensor:
    terms = [x * (x / y).log() for x, y in zip(a, b, strict=True) if x > 0]
    return torch.stack(terms).sum()


def gradients(loss: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of three times the loss, so that what comes from upstream is seen to count."""
    return torch.autograd.grad(3 * loss, leaves)

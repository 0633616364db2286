"""The student's output layer as the losses see it: a weight, and what happens to a logit after it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atroposlib.losses.groups import Groups, rank_in, size_of


@dataclass(frozen=True, slots=True)
class Head:
    """logit = cap(scale * (hidden . weight + bias)), with cap(z) = soft_cap * tanh(z / soft_cap).

    Attributes:
        weight: [V, H], of any float dtype; with tensor parallelism this rank's rows of it.
        bias: [V], or None.
        scale: Factor on every logit (Cohere's ``logit_scale``, 1 / Granite's ``logits_scaling``).
        soft_cap: Bound of a logit's size (Gemma 2's ``final_logit_softcapping``); None for none.
        vocabulary: How many rows over all ranks are tokens, where rows were added at the end so that every
            rank holds as many; the added ones have no probability. None where every row is a token.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    soft_cap: float | None = None
    vocabulary: int | None = None


def vocabulary_of(head: Head, groups: Groups) -> int:
    """V, the number of tokens over all ranks of ``groups.tensor``."""
    return head.weight.shape[0] * size_of(groups.tensor) if head.vocabulary is None else head.vocabulary


def own_tokens(head: Head, groups: Groups) -> int:
    """How many of this rank's rows are tokens; the others, at its end, are padding."""
    rows = head.weight.shape[0]
    return min(max(vocabulary_of(head, groups) - rank_in(groups.tensor) * rows, 0), rows)

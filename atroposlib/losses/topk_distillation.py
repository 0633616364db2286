"""Distillation from a teacher's top-k: every listed token is an event, all others together are one more.

With q the teacher's probabilities on a row's listed tokens, q_T = max(0, 1 - sum q), p the student's and p_T
its probability of all other tokens, the forward divergence of a row is, in nats,

    sum_k q_k (log q_k - log p_k) + q_T (log q_T - log p_T)

Over such events every divergence here is a lower bound of the one over the whole vocabulary (data
processing), never negative, and 0 exactly where the two models agree on every event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.checks import require_choice, require_temperature
from atroposlib.losses.divergences import Divergence, Events, divergence_of
from atroposlib.losses.groups import ALONE, Groups, size_of
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import Metrics
from atroposlib.losses.sparse import Pair, SparseLoss
from atroposlib.losses.teacher_columns import teacher_columns
from atroposlib.losses.topk_readout import TopKReadout

Support = Literal["tail", "renormalized", "zero_outside_topk"]

LOG_OUTSIDE = -100.0
"""What the teacher's log probability of an unlisted token counts as under ``zero_outside_topk`` (NeMo RL)."""


@dataclass(frozen=True, slots=True)
class TopKSettings:
    """Which divergence, over which events.

    Attributes:
        divergence: ``forward`` KL(teacher || student), ``reverse`` KL(student || teacher), ``mixed``
            (``mixed_weight`` * forward + the rest * reverse), or ``jsd`` (:func:`divergences.jsd`).
        support: ``tail`` as above. ``renormalized``: both sides divided by their mass on the listed tokens,
            blind to everything else. ``zero_outside_topk``: the teacher so divided, the student not; what
            the student gives to unlisted tokens stands against a log probability of -100 each.
        temperature: T; divides the student's logits, and the loss is multiplied by T^2.
        teacher_temperature: At which the teacher's logprobs were made. Other than T it needs a support
            without a tail: a tail cannot be brought to another temperature.
        mixed_weight: Of forward in ``mixed``.
        beta: Of ``jsd``: 0 is forward, 1 is reverse.
        extra_ids: integer [N, E] ids that the student chose; they join the columns.
        extra_logprobs: [N, E] nats of the teacher there; NaN where it said none.
        masked_ids: integer [M] ids (special tokens) that leave both distributions.
        row_weights: [N] factors on rows.
        check: Look for ids listed twice in a row first: their probability would count twice.

    Raises:
        ConfigError: Settings that do not fit together.
    """

    divergence: Divergence = "forward"
    support: Support = "tail"
    temperature: float = 1.0
    teacher_temperature: float = 1.0
    mixed_weight: float = 0.5
    beta: float = 0.5
    extra_ids: Tensor | None = None
    extra_logprobs: Tensor | None = None
    masked_ids: Tensor | None = None
    row_weights: Tensor | None = None
    check: bool = False

    def __post_init__(self) -> None:
        require_choice("divergence", self.divergence, get_args(Divergence))
        require_choice("support", self.support, get_args(Support))
        require_temperature(self.temperature)
        require_temperature(self.teacher_temperature, "teacher_temperature")
        if self.support == "tail" and self.temperature != self.teacher_temperature:
            raise ConfigError(
                "a teacher's tail cannot be brought to another temperature",
                where="teacher_temperature",
                got=self.teacher_temperature,
                expected=self.temperature,
                fix="let the teacher answer at the student's temperature, or set support: renormalized",
            )
        if self.support == "zero_outside_topk" and self.divergence == "jsd":
            raise ConfigError(
                "no JSD is defined for zero_outside_topk", where="support", fix="set support: tail"
            )
        for name, value in (("beta", self.beta), ("mixed_weight", self.mixed_weight)):
            if not 0.0 <= value <= 1.0:
                raise ConfigError("a weight out of range", where=name, got=value, expected="0 to 1")


def topk_distillation(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    logprobs: Tensor,
    *,
    global_count: int,
    recompute: bool = False,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
    **settings: Any,
) -> tuple[Tensor, Metrics]:
    """The divergence of one micro-batch, as its share of the mean over the whole optimizer step.

    Args:
        hidden: [N, H] of the student at the positions that predict each row's token.
        head: The student's output layer.
        ids: integer [N, K] token ids. A negative id is absent, wherever it stands in its row; ids from V on
            belong to the tail.
        logprobs: [N, K] of the teacher in nats; -inf and everything from -9999 down is absent.
        global_count: Rows with a target in the whole optimizer step, over all micro-batches and ranks that
            hold other rows. Losses and gradients of the micro-batches then simply add up.
        recompute: Form the gradient in the backward pass: slower, keeps nothing of the head's size.
        groups: Ranks that share the head's rows.
        chunk_rows: Rows of logits that exist at once; None for what fits into ``linear.CHUNK_BYTES``.
        settings: Attributes of :class:`TopKSettings`.

    Returns:
        The loss (scalar, nats a row: sum over rows / ``global_count``; a zero connected to ``hidden`` and the
        head's weight when no row has a target), and sums: ``loss`` (nats), ``rows`` (with a target),
        ``untrained_rows``, ``captured_mass`` and ``student_mass`` (probability on the listed tokens, of the
        teacher and of the student), ``overlap`` (rows whose likeliest token under the student is listed),
        ``out_of_vocabulary`` (entries that went to the tail); with ``masked_ids`` also ``masked_mass``
        (teacher probability taken out), with support ``renormalized`` ``one_column_rows`` (which teach
        nothing there).

    Raises:
        ConfigError: Settings that do not fit together.
        LossError: Tensors that do not fit each other.
    """
    chosen = TopKSettings(**settings)
    loss = _prepared(ids, logprobs, vocabulary_of(head, groups), chosen, global_count)
    return loss.from_hidden(
        hidden,
        head,
        temperature=chosen.temperature,
        groups=groups,
        chunk_rows=chunk_rows,
        recompute=recompute,
    )


def topk_distillation_from_logits(
    logits: Tensor,
    ids: Tensor,
    logprobs: Tensor,
    *,
    global_count: int,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
    **settings: Any,
) -> tuple[Tensor, Metrics]:
    """:func:`topk_distillation` from logits [N, V] of any float dtype, read in at least float32."""
    chosen = TopKSettings(**settings)
    loss = _prepared(ids, logprobs, logits.shape[-1] * size_of(groups.tensor), chosen, global_count)
    return loss.from_logits(logits, temperature=chosen.temperature, groups=groups, chunk_rows=chunk_rows)


def _prepared(
    ids: Tensor, logprobs: Tensor, vocabulary: int, settings: TopKSettings, global_count: int
) -> SparseLoss:
    masked_ids = settings.masked_ids
    if masked_ids is not None:
        masked_ids = torch.unique(masked_ids[(masked_ids >= 0) & (masked_ids < vocabulary)])
    columns = teacher_columns(
        ids,
        logprobs,
        vocabulary,
        extra_ids=settings.extra_ids,
        extra_logprobs=settings.extra_logprobs,
        masked_ids=masked_ids,
        check=settings.check,
    )
    if settings.support == "renormalized":
        if columns.ids.shape[-1] == 1:
            raise ConfigError(
                "one renormalized column says nothing: its probability is 1 on both sides",
                where="support",
                expected="at least two columns",
                fix="set support: tail",
            )
        alone = (columns.present.sum(-1) == 1).sum()
        columns = replace(columns, counts=columns.counts | {"one_column_rows": alone})
    outside = settings.support == "zero_outside_topk" and settings.divergence != "forward"
    return SparseLoss(
        columns,
        partial(_row_divergence, settings),
        TopKReadout(columns.ids, vocabulary, masked_ids, entropy=outside),
        global_count,
        settings.row_weights,
    )


def _row_divergence(settings: TopKSettings, pair: Pair) -> tuple[Tensor, Metrics]:
    """[n] nats, times T^2."""
    events = {"tail": _with_tail, "renormalized": _renormalized, "zero_outside_topk": _zero_outside}
    rows = divergence_of(
        events[settings.support](pair, settings.teacher_temperature / settings.temperature),
        settings.divergence,
        mixed_weight=settings.mixed_weight,
        beta=settings.beta,
    )
    if settings.support == "zero_outside_topk" and settings.divergence != "forward":
        outside = pair.tail_entropy - LOG_OUTSIDE * pair.p_tail
        rows = rows + (1.0 if settings.divergence == "reverse" else 1.0 - settings.mixed_weight) * outside
    return rows * settings.temperature**2, {}


def _with_tail(pair: Pair, _: float) -> Events:
    return Events(
        torch.cat([pair.q, pair.q_tail[:, None]], -1),
        torch.cat([pair.log_q, pair.log_q_tail[:, None]], -1),
        torch.cat([pair.p, pair.p_tail[:, None]], -1),
        torch.cat([pair.log_p, pair.log_p_tail[:, None]], -1),
    )


def _renormalized(pair: Pair, exponent: float) -> Events:
    log_q, log_p = _within(pair.log_q * exponent, pair.present), _within(pair.log_p, pair.present)
    return Events(_exp(log_q, pair.present), log_q, _exp(log_p, pair.present), log_p)


def _zero_outside(pair: Pair, exponent: float) -> Events:
    log_q = _within(pair.log_q * exponent, pair.present)
    return Events(_exp(log_q, pair.present), log_q, pair.p, pair.log_p)


def _within(logs: Tensor, present: Tensor) -> Tensor:
    """Log probabilities [n, K] given that one of the present columns it is; 0 elsewhere."""
    total = torch.where(present, logs, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.where(present, logs - total, 0.0)


def _exp(logs: Tensor, present: Tensor) -> Tensor:
    return torch.where(present, logs.exp(), 0.0)

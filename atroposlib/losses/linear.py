"""Reads rows of hidden @ head chunk by chunk: the logits of all rows never exist at once.

A loss reads little of a row of logits: a few of its entries, and the probability of a few sets of tokens.
A :class:`Readout` says which. Every such figure is a sum over the vocabulary, so the vocabulary may be cut
over ranks, and the gradient of a loss comes back as one number a figure.

Two ways, equal in value and gradient:

- :func:`read_rows`: the figures of all rows, for a loss that joins rows; the backward pass computes the
  logits again (4 matrix products).
- :func:`sum_over_rows`: a loss that is a sum over rows; its gradient is formed in the forward pass, while
  the logits are there (3 matrix products), and dHead is kept until the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atroposlib.losses.checks import require_temperature
from atroposlib.losses.elementwise import bend
from atroposlib.losses.groups import ALONE, Groups, largest, rank_in, shared_input, summed
from atroposlib.losses.head import Head, own_tokens

Figures = tuple[Tensor, ...]
Metrics = dict[str, Tensor]
"""Detached scalars that are sums over rows, so that they add up over micro-batches."""

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Size of the one buffer of logits, by device."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One chunk of rows, on one slice of the vocabulary.

    Attributes:
        at: Which rows of the whole they are.
        first_id: Token id of this rank's first column.
    """

    at: slice
    first_id: int


class Readout(Protocol):
    """What a loss reads of rows of logits. n rows of a chunk, v columns of this rank, S sums."""

    def measure(self, shifted: Tensor, rows: Rows) -> tuple[Tensor, Any]:
        """Sums over this rank's columns, and what :meth:`spread` needs.

        Args:
            shifted: [n, v] float32 or float64, logits less their row's maximum over all ranks. The method
                owns it and may overwrite it.
            rows: Which rows and columns these are.

        Returns:
            Sums [n, S], zero where these columns add nothing; and anything.
        """

    def spread(self, kept: Any, gradients: Tensor, rows: Rows) -> Tensor:
        """Gradient [n, v] with respect to the logits, given that with respect to the sums [n, S]."""

    def finish(self, sums: Tensor, at: slice) -> Figures:
        """The figures of rows ``at``, from their sums over the whole vocabulary; differentiable."""


def read_rows(
    hidden: Tensor,
    head: Head,
    readout: Readout,
    *,
    temperature: float = 1.0,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> Figures:
    """The figures of all rows.

    Args:
        hidden: [N, H] of the student at the positions that predict each row's token; with context
            parallelism this rank's.
        head: The student's output layer.
        readout: What to read.
        temperature: Divides the logits.
        groups: Ranks that share the head's rows.
        chunk_rows: Rows of logits that exist at once; None for as many as :data:`CHUNK_BYTES` allows.

    Returns:
        What ``readout.finish`` gives, of all N rows; float32, or float64 where ``hidden`` is.
    """
    work = _Work(head, readout, temperature, groups, chunk_rows or rows_of_a_chunk(head.weight, hidden))
    sums: Tensor = _Read.apply(hidden, head.weight, head.bias, work)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return readout.finish(sums, slice(0, hidden.shape[0]))


def sum_over_rows(
    hidden: Tensor,
    head: Head,
    readout: Readout,
    row_loss: Callable[[Figures, slice], tuple[Tensor, Metrics]],
    *,
    temperature: float = 1.0,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
    recompute: bool = False,
) -> tuple[Tensor, Metrics]:
    """A loss that is a sum over rows, with its gradient formed in the forward pass.

    Args:
        hidden, head, readout, temperature, groups, chunk_rows: As for :func:`read_rows`.
        row_loss: Given the figures of some rows, and which rows they are, their loss (scalar; a sum) and
            metrics (sums).
        recompute: Form the gradient in the backward pass instead: a fourth matrix product, and nothing of the
            head's size is kept in between.
    """
    work = _Work(head, readout, temperature, groups, chunk_rows or rows_of_a_chunk(head.weight, hidden))
    if recompute:
        sums: Tensor = _Read.apply(hidden, head.weight, head.bias, work)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        everything = slice(0, hidden.shape[0])
        return row_loss(readout.finish(sums, everything), everything)
    metrics: Metrics = {}
    loss: Tensor = _SumOverRows.apply(hidden, head.weight, head.bias, work, row_loss, metrics)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return loss, metrics


def rows_of_a_chunk(weight: Tensor, hidden: Tensor) -> int:
    """How many rows of logits fit into :data:`CHUNK_BYTES`."""
    width = torch.promote_types(hidden.dtype, torch.float32).itemsize
    return max(1, CHUNK_BYTES.get(weight.device.type, CHUNK_BYTES["cuda"]) // (weight.shape[0] * width))


@dataclass(frozen=True, slots=True)
class _Work:
    """Everything but the tensors that gradients flow to; ``head``'s own tensors are not read through it."""

    head: Head
    readout: Readout
    temperature: float
    groups: Groups
    chunk_rows: int

    def __post_init__(self) -> None:
        require_temperature(self.temperature)

    def chunks(self, hidden: Tensor, weight: Tensor) -> Iterator[Rows]:
        first_id = rank_in(self.groups.tensor) * weight.shape[0]
        # No rows are one empty chunk, so that their sums and metrics have names and shapes too.
        for start in range(0, max(1, hidden.shape[0]), self.chunk_rows):
            yield Rows(slice(start, min(start + self.chunk_rows, hidden.shape[0])), first_id)

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits [n, v] less their row's maximum, and the soft cap's derivative [n, v] where there is one.

        ``weight`` is what :func:`_factor` makes of the head's.
        """
        logits = _product(hidden, weight.t())
        slope = bend(logits, bias, self.head.scale, self.head.soft_cap, self.temperature)
        if self.head.vocabulary is not None:
            logits[:, own_tokens(self.head, self.groups) :] = -torch.inf
        return logits.sub_(largest(logits.amax(-1, keepdim=True), self.groups.tensor)), slope

    def through_head(self, gradient: Tensor, slope: Tensor | None) -> Tensor:
        """The gradient with respect to hidden . weight + bias, in place."""
        if slope is not None:
            gradient *= slope
        factor = self.head.scale / self.temperature
        return gradient.mul_(factor) if factor != 1.0 else gradient


class _Gradients:
    """Gradients of hidden, weight and bias, gathered over chunks in at least float32."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, needed: tuple[bool, ...]) -> None:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        self._like = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        self.hidden = torch.empty_like(hidden, dtype=wide) if needed[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needed[2] else None

    def add(self, gradient: Tensor, hidden: Tensor, weight: Tensor, at: slice, groups: Groups) -> None:
        """Take in the gradient [n, v] with respect to hidden . weight + bias of rows ``at``."""
        narrow = gradient.to(weight.dtype)
        if self.hidden is not None:
            self.hidden[at] = summed(_product(narrow, weight), groups.tensor)
        if self.weight is not None:
            _add_product(self.weight, narrow.t(), hidden[at])
        if self.bias is not None:
            self.bias += gradient.sum(0)

    def cast(self, factor: Tensor | None = None) -> tuple[Tensor | None, ...]:
        """The three, times ``factor`` in place, each rounded to its tensor's dtype only then."""
        # In place: a second copy of the head's gradient would cost more than all the chunks.
        sums = [
            value if value is None or factor is None else value.mul_(factor)
            for value in (self.hidden, self.weight, self.bias)
        ]
        return tuple(
            None if value is None else value.to(dtype) for value, dtype in zip(sums, self._like, strict=True)
        )


def _through(
    work: _Work,
    rows: Rows,
    leaves: tuple[Tensor, Tensor, Tensor | None],
    gradients: _Gradients,
    gradient_of: Callable[[Tensor, slice], Tensor | None],
) -> None:
    """Takes one chunk to its sums and, with what ``gradient_of`` says of them, back to the gradients.

    A function of its own so that a chunk's buffer is gone before the next one's is made.
    """
    hidden, weight, bias = leaves
    shifted, slope = work.logits(hidden[rows.at], weight, bias)
    sums, kept = work.readout.measure(shifted, rows)
    gradient = gradient_of(sums, rows.at)
    if gradient is not None:
        spread = work.readout.spread(kept, gradient, rows)
        gradients.add(work.through_head(spread, slope), hidden, weight, rows.at, work.groups)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, work: _Work) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(hidden, weight, bias)
        factor = _factor(weight, hidden)
        parts = [
            work.readout.measure(work.logits(hidden[rows.at], factor, bias)[0], rows)[0]
            for rows in work.chunks(hidden, weight)
        ]
        return summed(torch.cat(parts), work.groups.tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        work: _Work = ctx.work
        hidden, weight, bias = ctx.saved_tensors
        gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad)
        factor = _factor(weight, hidden)
        for rows in work.chunks(hidden, weight):
            _through(work, rows, (hidden, factor, bias), gradients, lambda _, at: gradient[at])
        return (*gradients.cast(), None)


class _SumOverRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        work: _Work,
        row_loss: Callable[[Figures, slice], tuple[Tensor, Metrics]],
        metrics: Metrics,
    ) -> Tensor:
        gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad)
        needed = any(ctx.needs_input_grad)
        total = torch.zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)

        def gradient_of(sums: Tensor, at: slice) -> Tensor | None:
            with torch.enable_grad():
                sums = summed(sums, work.groups.tensor).requires_grad_(needed)
                loss, chunk_metrics = row_loss(work.readout.finish(sums, at), at)
            total.add_(loss.detach())
            for name, value in chunk_metrics.items():
                metrics[name] = metrics[name] + value if name in metrics else value
            return torch.autograd.grad(loss, sums)[0] if needed else None

        factor = _factor(weight, hidden)
        for rows in work.chunks(hidden, weight):
            _through(work, rows, (hidden, factor, bias), gradients, gradient_of)
        if needed:
            ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scaled = ctx.gradients.cast(gradient)
        # A second backward pass then fails on the missing attribute rather than scale twice.
        del ctx.gradients
        return (*scaled, None, None, None)


def _factor(weight: Tensor, hidden: Tensor) -> Tensor:
    """``weight`` as a factor of ``hidden``, made once for all chunks.

    CUDA multiplies narrow numbers into float32, the CPU does not: there both sides are widened first.
    """
    return weight.to(hidden.dtype if hidden.is_cuda else torch.promote_types(hidden.dtype, torch.float32))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in at least float32: rounding logits to bfloat16 would cost up to 0.09 nats."""
    # Autocast would round the result, whatever the factors are.
    with torch.autocast(left.device.type, enabled=False):
        if left.is_cuda and left.dtype not in (torch.float32, torch.float64):
            return torch.mm(left, right, out_dtype=torch.float32)
        return left.to(right.dtype) @ right


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right without rounding the sum to the factors' dtype."""
    if total.dtype == left.dtype:
        total.addmm_(left, right.to(left.dtype))
    else:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)


class _AllLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return _product(hidden, _factor(weight, hidden).t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        gradients = _Gradients(hidden, weight, None, (*ctx.needs_input_grad, False))
        gradients.add(gradient, hidden, _factor(weight, hidden), slice(None), ALONE)
        return gradients.cast()[:2]


def logits_of(hidden: Tensor, head: Head, groups: Groups = ALONE) -> Tensor:
    """All logits [..., V] at once, differentiable; for what needs them and for comparison.

    In at least float32, as the chunks are. With tensor parallelism this rank's columns of them; the gradient
    of ``hidden`` is the whole one.
    """
    shared = shared_input(hidden, groups.tensor)
    logits: Tensor = _AllLogits.apply(shared.flatten(0, -2), head.weight)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    logits = logits.view(*hidden.shape[:-1], -1)
    if head.bias is not None:
        logits = logits + head.bias
    if head.scale != 1.0:
        logits = logits * head.scale
    if head.soft_cap is not None:
        logits = head.soft_cap * torch.tanh(logits / head.soft_cap)
    if head.vocabulary is None:
        return logits
    padding = torch.arange(logits.shape[-1], device=logits.device) >= own_tokens(head, groups)
    return logits.masked_fill(padding, -torch.inf)

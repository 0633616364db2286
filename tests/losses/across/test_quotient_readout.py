"""What is read of a row of logits, against the whole softmax in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from atroposlib.losses.across import ChunkTargets
from atroposlib.losses.across.quotient_readout import QuotientReadout
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Rows, read_rows
from tests.support.toy_losses import components, first_letter
from tests.support.toy_world import SIDES, STUDENT, sample_text, toy_pair, toy_sequence

WIDTH = len(STUDENT) + 1


def toy_targets() -> ChunkTargets:
    return ChunkTargets.of(toy_sequence(sample_text(60, 3)).arrays(3))


def logits_for(targets: ChunkTargets, width: int = WIDTH, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(targets.tokens), width, generator=generator, dtype=torch.float64)
    return (logits * 3).requires_grad_()


def dense(logits: Tensor, targets: ChunkTargets) -> tuple[Tensor, ...]:
    """The four figures, row by row; ids beyond the tokenizer's are in every class and in no cell."""
    log_p = logits.log_softmax(-1)
    cell_of = dict(enumerate(toy_pair().student.component[:-1].tolist()))
    safe = toy_pair().safe
    rows = []
    for row, (token, (x, _), cells) in enumerate(
        zip(targets.tokens.tolist(), targets.before.tolist(), targets.cells.tolist(), strict=True)
    ):
        inside = [
            number
            for number in range(logits.shape[-1])
            if number >= WIDTH
            or first_letter(SIDES[0], number) < 0
            or safe[x, first_letter(SIDES[0], number)]
        ]
        listed = [
            log_p[row, [n for n in inside if cell_of.get(n) == cell]].logsumexp(0)
            if cell >= 0
            else log_p.new_zeros(())
            for cell in cells
        ]
        rest = [n for n in inside if cell_of.get(n, -1) < 0 or cell_of[n] not in cells]
        tail = log_p[row, rest].logsumexp(0)
        rows.append((log_p[row, token], torch.stack(listed), tail, log_p[row, inside].logsumexp(0)))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize("width", [WIDTH, WIDTH + 3])
def test_figures_and_gradients_are_those_of_the_whole_softmax(width: int) -> None:
    targets = toy_targets()
    logits = logits_for(targets, width)
    head = Head(torch.eye(width, dtype=torch.float64))
    found = read_rows(logits, head, QuotientReadout(targets), chunk_rows=4)
    expected = dense(logits, targets)
    some = torch.isfinite(expected[2])
    generator = torch.Generator().manual_seed(1)
    losses = []
    for figures in (found, expected):
        kept = [figure[some] for figure in figures]
        weights = [
            torch.randn(one.shape, generator=generator.manual_seed(1), dtype=one.dtype) for one in kept
        ]
        losses.append(sum((weight * one).sum() for weight, one in zip(weights, kept, strict=True)))
        for one, other in zip(kept, (figure[some] for figure in expected), strict=True):
            torch.testing.assert_close(one, other)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in losses]
    torch.testing.assert_close(*gradients)


def test_slices_of_the_vocabulary_add_up() -> None:
    targets = toy_targets()
    readout = QuotientReadout(targets)
    everything = slice(0, len(targets.tokens))
    logits = logits_for(targets, WIDTH + 1).detach()
    shifted = logits - logits.amax(-1, keepdim=True)
    whole, kept = readout.measure(shifted.clone(), Rows(everything, 0))
    gradients = torch.randn(whole.shape, generator=torch.Generator().manual_seed(2), dtype=whole.dtype)
    spread = readout.spread(kept, gradients, Rows(everything, 0))
    parts, spreads = [], []
    for begin in range(0, WIDTH + 1, 4):
        rows = Rows(everything, begin)
        sums, kept = readout.measure(shifted[:, begin : begin + 4].clone(), rows)
        parts.append(sums)
        spreads.append(readout.spread(kept, gradients, rows))
    torch.testing.assert_close(torch.stack(parts).sum(0), whole)
    torch.testing.assert_close(torch.cat(spreads, -1), spread)


def test_a_tail_of_any_size_keeps_its_precision_in_float32() -> None:
    targets = toy_targets()
    row = int(targets.cut.nonzero()[0])
    cell_of = components(SIDES)[0]
    listed = {cell for cell in targets.cells[row].tolist() if cell >= 0}
    pair_cells = toy_pair().student.component[:-1]
    outside = [n for n in cell_of if pair_cells[n] not in listed]
    for exponent in range(3, 13, 3):
        logits = torch.zeros(len(targets.tokens), WIDTH)
        logits[:, outside] = -exponent * 2.302585
        head = Head(torch.eye(WIDTH))
        found = read_rows(logits, head, QuotientReadout(targets))[2][row]
        exact = read_rows(
            logits.double(), dataclasses.replace(head, weight=head.weight.double()), QuotientReadout(targets)
        )[2][row]
        assert abs(float(found) - float(exact)) < 1e-5

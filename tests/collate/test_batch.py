"""The tensors of a micro-batch say the same as the groups they were made from, token for token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.collate import Rows, RowTargets, Source, TrainSequence, collate, row_targets, train_sequences
from atroposlib.collate.signals import Signals
from atroposlib.wire.arrays import to_arrays

VOCABULARY = 60


@st.composite
def scored_groups(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Groups of random sizes, lengths, masks and widths, with valid distributions on the columns."""
    groups: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.integers(1, 4))
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        group: dict[str, Any] = {"tokens": [], "masks": [], "scores": [], "distill_token_ids": []}
        group["distill_logprobs"] = []
        for _ in range(draw(st.integers(1, 3))):
            length = draw(st.integers(1, 8))
            tokens = rng.integers(0, VOCABULARY, length)
            ids = np.stack([rng.choice(VOCABULARY, width, replace=False) for _ in range(length)])
            ids[rng.random((length, width)) < 0.3] = -1
            logprobs = np.log(rng.dirichlet(np.ones(width + 1), length)[:, :width])
            trained = rng.random(length) < 0.6
            group["tokens"].append(tokens.tolist())
            group["masks"].append(np.where(trained, tokens, -100).tolist())
            group["scores"].append(0.0)
            group["distill_token_ids"].append(ids.tolist())
            group["distill_logprobs"].append(np.where(ids < 0, -9999.0, logprobs).tolist())
        groups.append(group)
    return groups


@given(scored_groups())
@settings(max_examples=150, deadline=None)
def test_a_group_posted_is_the_group_trained_on(groups: list[dict[str, Any]]) -> None:
    arrays = [to_arrays(group, strict=True) for group in groups]  # type: ignore[arg-type]
    sequences, _ = train_sequences(arrays, max_token_len=100, vocab_size=VOCABULARY)
    if not sequences:
        return
    batch = collate(sequences)
    found = set()
    targets = targets_of(sequences)
    for position, ids, logprobs in zip(
        targets.positions.tolist(), targets.ids.tolist(), targets.logprobs, strict=True
    ):
        row, at = divmod(position, batch.input_ids.shape[1])
        length = int(batch.attention_mask[row].sum())
        tokens = tuple(batch.input_ids[row, :length].tolist())
        columns = {(i, lp.item()) for i, lp in zip(ids, logprobs, strict=True) if i >= 0}
        found.add((tokens, at + 1, frozenset(columns)))
    assert found == expected_targets(groups)


def expected_targets(groups: list[dict[str, Any]]) -> set[tuple[tuple[int, ...], int, frozenset[object]]]:
    """(tokens, position of the predicted token, present columns) read off the groups entry by entry."""
    expected = set()
    for group in groups:
        for index, tokens in enumerate(group["tokens"]):
            for at in range(1, len(tokens)):
                ids = group["distill_token_ids"][index][at]
                logprobs = group["distill_logprobs"][index][at]
                pairs = zip(ids, logprobs, strict=True)
                columns = frozenset((i, float(np.float32(lp))) for i, lp in pairs if i >= 0)
                if group["masks"][index][at] != -100 and columns:
                    expected.add((tuple(tokens), at, columns))
    return expected


def targets_of(sequences: list[TrainSequence]) -> RowTargets:
    targets = row_targets(collate(sequences), Source("teacher"))
    assert targets is not None
    return targets


def make_sequence(length: int, columns: int) -> TrainSequence:
    rows = Rows(
        positions=np.array([length - 2]),
        ids=np.arange(columns)[None],
        logprobs=np.full((1, columns), -3.0, np.float32),
    )
    nothing = np.full(length, np.nan, np.float32)
    return TrainSequence(
        token_ids=np.arange(1, length + 1),
        trained=np.ones(length, np.bool_),
        signals=Signals(nothing, nothing, nothing),
        group=0,
        rows={Source("teacher"): rows},
    )


def test_padding_stands_on_the_right_and_is_not_attended() -> None:
    sequences = [make_sequence(2, 1), make_sequence(4, 1)]
    batch = collate(sequences)
    assert batch.input_ids.tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert batch.attention_mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert targets_of(sequences).positions.tolist() == [0, 6]


def test_rows_of_fewer_columns_are_widened_with_absent_ones() -> None:
    targets = targets_of([make_sequence(2, 1), make_sequence(2, 3)])
    assert targets.ids.tolist() == [[0, -1, -1], [0, 1, 2]]
    assert targets.logprobs.tolist() == [[-3.0, -9999.0, -9999.0], [-3.0, -3.0, -3.0]]


def test_tensors_have_the_types_that_the_model_and_the_loss_read() -> None:
    sequence = make_sequence(3, 2)
    targets = targets_of([sequence])
    assert collate([sequence]).input_ids.dtype == targets.positions.dtype == targets.ids.dtype == torch.int64
    assert targets.logprobs.dtype == torch.float32


def test_a_teacher_that_said_nothing_of_a_micro_batch_has_no_rows_in_it() -> None:
    assert row_targets(collate([make_sequence(3, 2)]), Source("another")) is None

"""Turns the groups of a batch into sequences with teacher targets; whatever cannot be trained is counted.

Arrays of a group speak of token p given the tokens before it; the model's logits at p - 1 predict token p.
The shift between the two is made here, once, and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, IGNORED, ScoredDataGroup

_NO_IDS = np.empty((0, 0), np.int64)
_NO_LOGPROBS = np.empty((0, 0), np.float32)

MASS_TOLERANCE = 0.01
"""How far the probabilities of a row may sum above 1 (teachers that compute in bfloat16 round)."""


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One rollout with its targets.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [R], strictly rising: logits at ``positions[r]`` predict token ``positions[r] + 1``.
        target_ids: int64 [R, K]; ``ABSENT_ID`` where a column is absent; no id twice in a row.
        target_logprobs: float32 [R, K] in nats.
        group: Index of its group in the batch.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    target_logprobs: NDArray[np.float32]
    group: int


@dataclass(slots=True)
class CollateCounts:
    """What a batch held and what of it is not trained on.

    Attributes:
        sequences: Sequences received.
        trained_tokens: Tokens that the environment marked for training, in sequences that can be read.
        target_tokens: Those of them that have a teacher target: the rows that the loss sees.
        dropped_sequences: Whole sequences left out, by reason.
        dropped_groups: Groups of which no sequence is left, by the reason of the last one.
        untrained_rows: Marked tokens without a usable target, by reason; with ``target_tokens`` they make up
            ``trained_tokens``.
        duplicate_columns: Ids listed a second time in their row; the first one counts.
        out_of_vocabulary: Target entries that the student has no row for; they belong to the tail.
    """

    sequences: int = 0
    trained_tokens: int = 0
    target_tokens: int = 0
    dropped_sequences: Counter[str] = field(default_factory=Counter)
    dropped_groups: Counter[str] = field(default_factory=Counter)
    untrained_rows: Counter[str] = field(default_factory=Counter)
    duplicate_columns: int = 0
    out_of_vocabulary: int = 0


def train_sequences(
    groups: Sequence[ScoredDataGroup], *, max_token_len: int, vocab_size: int
) -> tuple[list[TrainSequence], CollateCounts]:
    """The trainable sequences of a batch, in the order in which they came.

    A sequence is never cut: one above ``max_token_len`` is dropped with a reason. ``overrides`` such as
    ``set_advantage_to_zero`` speak of rewards, which distillation does not read, and change nothing here.

    Args:
        groups: Groups as GET /batch delivers them.
        max_token_len: Longest sequence, in tokens.
        vocab_size: Rows of the student's head.
    """
    counts = CollateCounts()
    kept: list[TrainSequence] = []
    for group_index, group in enumerate(groups):
        before, reason = len(kept), "empty"
        for index, tokens in enumerate(group["tokens"]):
            counts.sequences += 1
            refusal = _unusable(tokens, group["masks"][index], max_token_len, vocab_size)
            if refusal is None:
                sequence = _with_targets(group, index, group_index, vocab_size, counts)
                if len(sequence.positions):
                    kept.append(sequence)
                    continue
            reason = refusal or "no_target"
            counts.dropped_sequences[reason] += 1
        if len(kept) == before:
            counts.dropped_groups[reason] += 1
    return kept, counts


def _unusable(tokens: list[int], mask: list[int], max_token_len: int, vocab_size: int) -> str | None:
    if len(tokens) > max_token_len:
        return "too_long"
    if len(mask) != len(tokens):
        return "mask_length"
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        return "token_outside_vocabulary"
    return None


def _with_targets(
    group: ScoredDataGroup, index: int, group_index: int, vocab_size: int, counts: CollateCounts
) -> TrainSequence:
    tokens = np.asarray(group["tokens"][index], dtype=np.int64)
    trained = np.asarray(group["masks"][index], dtype=np.int64) != IGNORED
    # Nothing comes before token 0, so nothing predicts it.
    trained[:1] = False
    rows = np.flatnonzero(trained)
    counts.trained_tokens += len(rows)
    arrays = _distill_arrays(group, index, len(tokens), rows)
    if arrays is None:
        counts.untrained_rows["no_arrays"] += len(rows)
        return TrainSequence(tokens, rows[:0], _NO_IDS, _NO_LOGPROBS, group_index)
    ids, logprobs = _single_events(*arrays, vocab_size, counts)
    usable = _usable_rows(ids, logprobs, counts)
    counts.target_tokens += int(usable.sum())
    return TrainSequence(tokens, rows[usable] - 1, ids[usable], logprobs[usable], group_index)


def _distill_arrays(
    group: ScoredDataGroup, index: int, length: int, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    """Arrays [R, K] of one sequence at ``rows``; None where the arrays are missing or misshapen."""
    ids = _entry(group.get("distill_token_ids"), index)
    logprobs = _entry(group.get("distill_logprobs"), index)
    if len(ids) != length or list(map(len, ids)) != list(map(len, logprobs)):
        return None
    shape = (len(rows), max(map(len, ids), default=0))
    padded_ids = [_padded(ids[row], shape[1], ABSENT_ID) for row in rows]
    padded_logprobs = [_padded(logprobs[row], shape[1], ABSENT_LOGPROB) for row in rows]
    return np.array(padded_ids, np.int64).reshape(shape), np.array(padded_logprobs, np.float32).reshape(shape)


def _entry(arrays: list[list[list[Any]]] | None, index: int) -> list[list[Any]]:
    return arrays[index] or [] if arrays is not None and index < len(arrays) else []


def _padded(row: list[Any], width: int, absent: float) -> list[Any]:
    return row if len(row) == width else [*row, *[absent] * (width - len(row))]


def _single_events(
    ids: NDArray[np.int64], logprobs: NDArray[np.float32], vocab_size: int, counts: CollateCounts
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The arrays with each id once in a row and below ``vocab_size``, and absent entries marked by id."""
    ids = np.where(logprobs <= ABSENT_LOGPROB, ABSENT_ID, np.maximum(ids, ABSENT_ID))
    outside = ids >= vocab_size
    counts.out_of_vocabulary += int(outside.sum())
    ids = np.where(outside, ABSENT_ID, ids)
    order = np.argsort(ids, axis=-1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=-1)
    again = np.zeros_like(ids, dtype=bool)
    again[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != ABSENT_ID)
    duplicate = np.zeros_like(again)
    np.put_along_axis(duplicate, order, again, axis=-1)
    counts.duplicate_columns += int(duplicate.sum())
    ids = np.where(duplicate, ABSENT_ID, ids)
    return ids, np.where(ids == ABSENT_ID, np.float32(ABSENT_LOGPROB), logprobs)


def _usable_rows(
    ids: NDArray[np.int64], logprobs: NDArray[np.float32], counts: CollateCounts
) -> NDArray[np.bool_]:
    """bool [R]: rows with a present column whose values can be probabilities of one distribution."""
    present = ids != ABSENT_ID
    scored: NDArray[np.bool_] = present.any(axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        mass = np.where(present, np.exp(logprobs, dtype=np.float64), 0.0).sum(axis=-1)
    # NaN compares false, so a row with one is not sound either.
    sound: NDArray[np.bool_] = mass <= 1.0 + MASS_TOLERANCE
    counts.untrained_rows["not_scored"] += int((~scored).sum())
    counts.untrained_rows["not_probabilities"] += int((scored & ~sound).sum())
    return scored & sound

"""Turns the groups of a batch into sequences with teacher targets; whatever cannot be trained is counted.

Arrays of a group speak of token p given the tokens before it; the model's logits at p - 1 predict token p.
The shift between the two is made here, once, and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB, IGNORED, Group, Targets
from atroposlib.wire.targets import MOST_MASS, repeated

OTHER_TOKENIZERS_ONLY = "no_same_tokenizer_target"
"""Reason of what only teachers with another tokenizer have scored, which this loss cannot read."""

_NO_IDS = np.empty((0, 0), np.int64)
_NO_LOGPROBS = np.empty((0, 0), np.float32)


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
    groups: Sequence[Group], *, max_token_len: int, vocab_size: int
) -> tuple[list[TrainSequence], CollateCounts]:
    """The trainable sequences of a batch, in the order in which they came.

    A sequence is never cut: one above ``max_token_len`` is dropped with a reason. ``overrides`` such as
    ``set_advantage_to_zero`` speak of rewards, which distillation does not read, and change nothing here.

    Args:
        groups: Groups of a batch, in its order; float16 targets are read as float32.
        max_token_len: Longest sequence, in tokens.
        vocab_size: Rows of the student's head.
    """
    counts = CollateCounts()
    kept: list[TrainSequence] = []
    for group_index, group in enumerate(groups):
        before, reason = len(kept), "empty"
        for index, tokens in enumerate(group.tokens):
            counts.sequences += 1
            refusal = _unusable(tokens, group.masks[index], max_token_len, vocab_size)
            if refusal is None:
                sequence = _with_targets(group, index, group_index, vocab_size, counts)
                if len(sequence.positions):
                    kept.append(sequence)
                    continue
            reason = refusal or (OTHER_TOKENIZERS_ONLY if _only_others(group) else "no_target")
            counts.dropped_sequences[reason] += 1
        if len(kept) == before:
            counts.dropped_groups[reason] += 1
    return kept, counts


def _only_others(group: Group) -> bool:
    """Whether a group has targets, and all of them at the tokens of another tokenizer."""
    return group.targets is None and any(teacher.targets is not None for teacher in group.teachers)


def _unusable(
    tokens: NDArray[np.int32], mask: NDArray[np.int32], max_token_len: int, vocab_size: int
) -> str | None:
    if len(tokens) > max_token_len:
        return "too_long"
    if len(mask) != len(tokens):
        return "mask_length"
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        return "token_outside_vocabulary"
    return None


def _with_targets(
    group: Group, index: int, group_index: int, vocab_size: int, counts: CollateCounts
) -> TrainSequence:
    tokens = group.tokens[index].astype(np.int64)
    trained = group.masks[index] != IGNORED
    # Nothing comes before token 0, so nothing predicts it.
    trained[:1] = False
    rows = np.flatnonzero(trained)
    counts.trained_tokens += len(rows)
    if group.targets is None or not group.targets.counts[index]:
        counts.untrained_rows[OTHER_TOKENIZERS_ONLY if _only_others(group) else "no_arrays"] += len(rows)
        return TrainSequence(tokens, rows[:0], _NO_IDS, _NO_LOGPROBS, group_index)
    scored, ids, logprobs = _scored_rows(group.targets, index, rows)
    counts.untrained_rows["not_scored"] += len(rows) - len(scored)
    ids, logprobs = _single_events(ids, logprobs, vocab_size, counts)
    usable = _usable_rows(ids, logprobs, counts)
    counts.target_tokens += int(usable.sum())
    return TrainSequence(tokens, scored[usable] - 1, ids[usable], logprobs[usable], group_index)


def _scored_rows(
    targets: Targets, index: int, rows: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.float32]]:
    """Those of the positions ``rows`` that have a row of targets, and its columns [R, K]."""
    first_row = int(targets.counts[:index].sum())
    inside = rows - int(targets.starts[index])
    has_row = (inside >= 0) & (inside < targets.counts[index])
    at = first_row + inside[has_row]
    return rows[has_row], targets.ids[at].astype(np.int64), targets.logprobs[at].astype(np.float32)


def _single_events(
    ids: NDArray[np.int64], logprobs: NDArray[np.float32], vocab_size: int, counts: CollateCounts
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The arrays with each id once in a row and below ``vocab_size``, and absent entries marked by id."""
    ids = np.where(logprobs <= ABSENT_LOGPROB, ABSENT_ID, np.maximum(ids, ABSENT_ID))
    outside = ids >= vocab_size
    counts.out_of_vocabulary += int(outside.sum())
    ids = np.where(outside, ABSENT_ID, ids)
    duplicate = repeated(ids)
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
    sound: NDArray[np.bool_] = mass <= MOST_MASS
    counts.untrained_rows["not_scored"] += int((~scored).sum())
    counts.untrained_rows["not_probabilities"] += int((scored & ~sound).sum())
    return scored & sound

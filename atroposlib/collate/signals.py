"""What of a group speaks of single tokens besides teachers: advantages, and logprobs of two policies.

Arrays are float32 [T] like the tokens that they speak of, NaN where there is nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atroposlib.collate.reasons import NO_ADVANTAGE, NO_GENERATION, NO_REFERENCE, TAUGHT, Reasons
from atroposlib.types import ABSENT_LOGPROB, Group, Targets

REFERENCE = "reference"
"""Name of the teacher whose logprobs are those of the reference policy."""

SMALLEST_DEVIATION = 1e-8

_MISSING = {"advantages": NO_ADVANTAGE, "generation": NO_GENERATION, "reference": NO_REFERENCE}

Signal: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Signals:
    """Of one sequence of T tokens.

    Attributes:
        advantages: How much better each token did than its group.
        generation: Logprob (nats) of each token under the policy that sampled it.
        reference: Under the reference policy.
    """

    advantages: Signal
    generation: Signal
    reference: Signal


def signals_of(group: Group, index: int) -> Signals:
    """The signals of one sequence of a group."""
    length = len(group.tokens[index])
    return Signals(
        _advantages(group, index, length),
        _logprobs(None if group.inference_logprobs is None else group.inference_logprobs[index], length),
        _reference(group, index, length),
    )


def _advantages(group: Group, index: int, length: int) -> Signal:
    """The group's own, else its scores less their mean over their deviation, as Atropos's trainer does.

    A single score is taken as it is. ``set_advantage_to_zero`` holds for either.
    """
    overrides = group.rest.get("overrides") or []
    if index < len(overrides) and (overrides[index] or {}).get("set_advantage_to_zero"):
        return np.zeros(length, np.float32)
    if group.advantages is not None:
        given = group.advantages[index]
        return (
            given
            if len(given) == length
            else np.full(length, given[0] if len(given) == 1 else np.nan, np.float32)
        )
    scores = np.asarray(group.scores, np.float64)
    if len(scores) > 1:
        scores = (scores - scores.mean()) / max(scores.std(), SMALLEST_DEVIATION)
    return np.full(length, scores[index], np.float32)


def _logprobs(given: Signal | None, length: int) -> Signal:
    if given is None or len(given) != length:
        return np.full(length, np.nan, np.float32)
    # Above 0 stands PROMPT_LOGPROB, at tokens that nobody sampled.
    return np.where((given <= 0) & (given > ABSENT_LOGPROB), given, np.float32(np.nan))


def _reference(group: Group, index: int, length: int) -> Signal:
    if group.ref_logprobs is not None:
        return _logprobs(group.ref_logprobs[index], length)
    for teacher in group.teachers:
        if teacher.facts.get("name") == REFERENCE and teacher.tokens is None and teacher.targets is not None:
            return logprobs_of_tokens(teacher.targets, index, group.tokens[index])
    return np.full(length, np.nan, np.float32)


def logprobs_of_tokens(targets: Targets, index: int, tokens: NDArray[np.int32]) -> Signal:
    """What a teacher gave the tokens of one sequence themselves, which is its first column."""
    found = np.full(len(tokens), np.nan, np.float32)
    first_row, count = int(targets.counts[:index].sum()), int(targets.counts[index])
    start = int(targets.starts[index])
    count = min(count, len(tokens) - start)
    if count <= 0 or not targets.ids.shape[1]:
        return found
    rows = slice(first_row, first_row + count)
    said = targets.logprobs[rows, 0].astype(np.float32)
    there = (targets.ids[rows, 0] == tokens[start : start + count]) & (said > ABSENT_LOGPROB)
    found[start : start + count] = np.where(there, said, np.float32(np.nan))
    return found


def missing_signal(signals: Signals, needed: Sequence[str]) -> Reasons:
    """Why each token [T] cannot be read by a loss that needs these signals, by their names."""
    reasons = np.full(len(signals.advantages), TAUGHT, np.int8)
    for name in needed:
        absent = np.isnan(getattr(signals, name))
        reasons = np.where(absent & (reasons == TAUGHT), _MISSING[name], reasons).astype(np.int8)
    return reasons

"""Which of the waiting sequences go into the next forward pass of prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from atroposlib.modelserver.work import Job, Sequence


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much goes into one batch; see the settings of the same names."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_cached_tokens: int
    batch_wait_s: float


def choose_batch(waiting: Iterable[Sequence], running: list[Sequence], limits: BatchLimits) -> list[Sequence]:
    """The oldest waiting sequence that there is room for, and those of its kind that fit beside it."""
    taken: list[Sequence] = []
    jobs: set[Job] = set()
    longest = 0
    full = False
    for sequence in waiting:
        goes_on = _goes_on(sequence)
        if taken and goes_on != _goes_on(taken[0]):
            continue
        if goes_on and (full or not _fits_cache([*running, *taken, sequence], limits)):
            full = True  # Later ones may not overtake, or a large request would wait for ever.
            continue
        width = max(longest, len(sequence.job.prompt_ids))
        if taken and len(jobs | {sequence.job}) * width > limits.max_num_batched_tokens:
            continue
        taken.append(sequence)
        jobs.add(sequence.job)
        longest = width
    return taken


def _goes_on(sequence: Sequence) -> bool:
    return sequence.job.options.max_tokens > 1


def _fits_cache(sequences: list[Sequence], limits: BatchLimits) -> bool:
    if len(sequences) == 1:
        return True
    width = max(len(sequence.job.prompt_ids) + sequence.job.options.max_tokens for sequence in sequences)
    return len(sequences) <= limits.max_num_seqs and len(sequences) * width <= limits.max_cached_tokens

"""Turns the groups of a batch into sequences with what the losses read, and counts what is not trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atroposlib.collate.other_tokens import read_aligned, read_chunks
from atroposlib.collate.pairs import Place, best_and_worst
from atroposlib.collate.reasons import (
    NAMES,
    NO_ARRAYS,
    NO_PAIR,
    NOT_SCORED,
    OTHERS_ONLY,
    TAUGHT,
    UNUSED_CHUNK,
    Reasons,
)
from atroposlib.collate.sequences import CollateCounts, TrainSequence
from atroposlib.collate.signals import missing_signal, signals_of
from atroposlib.collate.sources import Wanted, chunk_sources, row_sources
from atroposlib.collate.targets import target_rows
from atroposlib.types import IGNORED, Group

Found = tuple[TrainSequence, Reasons]
"""A sequence, and why each of its tokens is not taught by a teacher."""


def train_sequences(
    groups: Sequence[Group], *, max_token_len: int, vocab_size: int, wanted: Wanted | None = None
) -> tuple[list[TrainSequence], CollateCounts]:
    """The trainable sequences of a batch, in the order in which they came.

    A sequence is never cut: one above ``max_token_len`` is dropped with a reason.

    Args:
        groups: Groups of a batch, in its order.
        max_token_len: Longest sequence, in tokens.
        vocab_size: Rows of the student's head.
        wanted: What the losses read; the rows of teachers with the student's tokenizer when omitted.

    Raises:
        ConfigError: A teacher's tokenizer is not at hand, or its weight or temperature is no number.
    """
    counts = CollateCounts()
    reader = _Reader(wanted or Wanted(), max_token_len, vocab_size, counts)
    kept: list[TrainSequence] = []
    for group_index, group in enumerate(groups):
        before, reason = len(kept), "empty"
        for sequence, why in reader.read(group, group_index):
            if sequence is None:
                reason = why
                counts.dropped_sequences[reason] += 1
            else:
                kept.append(sequence)
        if len(kept) == before:
            counts.dropped_groups[reason] += 1
    return kept, counts


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads groups, and counts what of them is not trained."""

    wanted: Wanted
    max_token_len: int
    vocab_size: int
    counts: CollateCounts

    def read(self, group: Group, group_index: int) -> Iterator[tuple[TrainSequence | None, str]]:
        """Each sequence that can be trained, and None with the reason for each that cannot."""
        self.counts.sequences += len(group.tokens)
        untold = OTHERS_ONLY if self._only_others(group) else NO_ARRAYS
        found: dict[int, Found] = {}
        refusals: dict[int, str] = {}
        for index in range(len(group.tokens)):
            if (refusal := self._refusal(group, index)) is None:
                found[index] = self._sequence(group, index, group_index, untold)
            else:
                refusals[index] = refusal
        places = self._places(group, group_index, found)
        for index in range(len(group.tokens)):
            if index in refusals:
                yield None, refusals[index]
                continue
            sequence, reasons = found[index]
            sequence = replace(sequence, place=places.get(index))
            reasons = self._narrowed(sequence, self._with_signals(sequence, reasons))
            self._count(sequence, reasons)
            if (reasons[sequence.trained] == TAUGHT).any():
                yield sequence, ""
            else:
                yield None, NAMES[OTHERS_ONLY] if untold == OTHERS_ONLY else "no_target"

    def _refusal(self, group: Group, index: int) -> str | None:
        tokens = group.tokens[index]
        if len(tokens) > self.max_token_len:
            return "too_long"
        if len(group.masks[index]) != len(tokens):
            return "mask_length"
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
            return "token_outside_vocabulary"
        return None

    def _only_others(self, group: Group) -> bool:
        """Whether teachers with another tokenizer, whom no loss reads, are all who said something."""
        wanted = self.wanted
        others = any(teacher.targets is not None and teacher.tokens is not None for teacher in group.teachers)
        read = chunk_sources(group, wanted, lambda source: wanted.chunks(source) or wanted.aligned(source))
        return others and not read and not row_sources(group, wanted)

    def _sequence(self, group: Group, index: int, group_index: int, untold: int) -> Found:
        tokens = group.tokens[index].astype(np.int64)
        trained = group.masks[index] != IGNORED
        # Nothing comes before token 0, so nothing predicts it.
        trained[:1] = False
        version = group.rest.get("policy_version")
        sequence = TrainSequence(
            tokens,
            trained,
            signals_of(group, index),
            group_index,
            score=float(group.scores[index]),
            own=group.inference_logprobs is not None,
            age=max(0, self.wanted.newest() - version) if isinstance(version, int) else 0,
        )
        reasons = np.full(len(tokens), untold, np.int8)
        for why in (*self._read_rows(group, index, sequence), *self._read_others(group, index, sequence)):
            reasons = np.minimum(reasons, why)
        return sequence, reasons

    def _read_rows(self, group: Group, index: int, sequence: TrainSequence) -> Iterator[Reasons]:
        """Add what teachers with the student's tokenizer said; for each, why tokens are not taught by it."""
        for source, targets in row_sources(group, self.wanted):
            if targets.counts[index]:
                sequence.rows[source], why = target_rows(
                    targets, index, sequence.trained, self.vocab_size, self.counts.columns
                )
                yield why

    def _read_others(self, group: Group, index: int, sequence: TrainSequence) -> Iterator[Reasons]:
        """The same of teachers with another tokenizer."""
        for source, teacher in chunk_sources(group, self.wanted, self.wanted.chunks):
            pair = self.wanted.pair_of(source.name, source.tokenizer)
            minimal = self.wanted.minimal_chunks
            sequence.chunks[source], why = read_chunks(
                pair, teacher, index, sequence.token_ids, sequence.trained, minimal=minimal
            )
            yield why
        for source, teacher in chunk_sources(group, self.wanted, self.wanted.aligned):
            sequence.aligned[source], why = read_aligned(teacher, index, sequence.trained)
            yield why

    def _places(self, group: Group, group_index: int, found: dict[int, Found]) -> dict[int, Place]:
        """The places of the group's pair, of sequences that the loss of pairs can read whole."""
        if not self.wanted.pairs:
            return {}
        whole = [
            index
            for index, (sequence, _) in found.items()
            if len(sequence.positions(self.wanted.pair_signals)) == sequence.trained.sum() > 0
        ]
        pair = best_and_worst(group.scores, whole)
        if pair is None:
            self.counts.tied_groups += len(whole) > 1
            return {}
        return {pair[0]: Place(group_index, chosen=True), pair[1]: Place(group_index, chosen=False)}

    def _with_signals(self, sequence: TrainSequence, reasons: Reasons) -> Reasons:
        """The reasons when also the losses that read signals are asked."""
        for needed in self.wanted.signals:
            reasons = np.minimum(reasons, missing_signal(sequence.signals, needed))
        if self.wanted.pairs:
            lacking = missing_signal(sequence.signals, self.wanted.pair_signals)
            unpaired = np.where(lacking == TAUGHT, NO_PAIR, lacking)
            reasons = np.minimum(reasons, unpaired if sequence.place is None else TAUGHT)
        return reasons.astype(np.int8)

    def _narrowed(self, sequence: TrainSequence, reasons: Reasons) -> Reasons:
        """The reasons when the losses themselves are asked, which may read less than there is."""
        if self.wanted.learned is None:
            return reasons
        unread = reasons == TAUGHT
        unread[self.wanted.learned(sequence) + 1] = False
        lacking = missing_signal(sequence.signals, self.wanted.with_rows)
        unused = UNUSED_CHUNK if sequence.chunks else NOT_SCORED
        return np.where(unread, np.where(lacking == TAUGHT, unused, lacking), reasons).astype(np.int8)

    def _count(self, sequence: TrainSequence, reasons: Reasons) -> None:
        of_trained = np.bincount(reasons[sequence.trained], minlength=len(NAMES)).tolist()
        self.counts.trained_tokens += sum(of_trained)
        self.counts.target_tokens += of_trained[TAUGHT]
        self.counts.untrained_rows.update(dict(zip(NAMES[1:], of_trained[1:], strict=True)))

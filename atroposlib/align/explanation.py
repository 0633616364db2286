"""An alignment for people to read: which tokens stand beside which, what is masked and why, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from atroposlib.align.chunks import NO_CHUNK, Alignment
from atroposlib.align.tables.table import SPECIAL, Vocabulary
from atroposlib.align.views.reasons import LONE_MARKER, NOT_EQUAL

Side = tuple[Vocabulary, npt.ArrayLike]
"""A byte table, and a sequence of its ids."""

Token = bytes | str
"""The bytes of a token, or the name of a marker."""

State = Literal["paired", "alone", "masked"]

UNKNOWN = "unknown"
"""Ids that stand for nobody knows what: the unknown token, and ids without one."""


@dataclass(frozen=True, slots=True)
class ExplainedChunk:
    """Tokens of both sides that stand beside each other.

    Attributes:
        student: Its tokens: bytes as they are, markers by their name.
        teacher: Likewise.
        state: ``paired`` for a valid chunk, ``alone`` for a marker that the other side lacks, ``masked`` for
            tokens in no chunk.
        reason: Why there is no pair; empty when there is.
    """

    student: tuple[Token, ...]
    teacher: tuple[Token, ...]
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Figures of an alignment.

    Attributes:
        student_tokens, teacher_tokens: T and U.
        student_bytes, teacher_bytes: Of the text; markers have none.
        chunks: Valid ones.
        student_share, teacher_share: Of the bytes, those in valid chunks; 1 when there are no bytes.
        tokens_a_chunk: Student tokens in a valid chunk, on average; 0 when there is no chunk.
        exact_share: Of the valid chunks, those of one token on both sides; 0 when there is no chunk.
    """

    student_tokens: int
    teacher_tokens: int
    student_bytes: int
    teacher_bytes: int
    chunks: int
    student_share: float
    teacher_share: float
    tokens_a_chunk: float
    exact_share: float


def coverage(
    alignment: Alignment, student_lengths: npt.ArrayLike, teacher_lengths: npt.ArrayLike
) -> Coverage:
    """How much of two sequences is in valid chunks.

    Args:
        alignment: Of T student tokens and U teacher tokens.
        student_lengths: Bytes of each student token, integers [T].
        teacher_lengths: Bytes of each teacher token, integers [U].
    """
    valid = int(alignment.valid.sum())
    # The last entry is that of NO_CHUNK.
    inside = np.append(alignment.valid, False)
    sizes = np.asarray(student_lengths, dtype=np.int64), np.asarray(teacher_lengths, dtype=np.int64)
    ours, theirs = inside[alignment.student_chunk_id], inside[alignment.teacher_chunk_id]
    return Coverage(
        student_tokens=len(ours),
        teacher_tokens=len(theirs),
        student_bytes=int(sizes[0].sum()),
        teacher_bytes=int(sizes[1].sum()),
        chunks=valid,
        student_share=_share(sizes[0], ours),
        teacher_share=_share(sizes[1], theirs),
        tokens_a_chunk=int(ours.sum()) / valid if valid else 0.0,
        exact_share=int(alignment.exact().sum()) / valid if valid else 0.0,
    )


def _share(sizes: npt.NDArray[np.int64], inside: npt.NDArray[np.bool_]) -> float:
    total = int(sizes.sum())
    return int(sizes[inside].sum()) / total if total else 1.0


def explain(alignment: Alignment, student: Side, teacher: Side) -> list[ExplainedChunk]:
    """The chunks of an alignment in order, and between them what is in none: every token exactly once.

    Args:
        alignment: Of the two sequences.
        student: The student's byte table and ids [T].
        teacher: The teacher's, [U].
    """
    ours, theirs = _Tokens(student, alignment.student_chunk_id), _Tokens(teacher, alignment.teacher_chunk_id)
    told = list(_masked(ours, theirs, NO_CHUNK))
    for chunk, valid in enumerate(alignment.valid.tolist()):
        state: State = "paired" if valid else "alone"
        told.append(ExplainedChunk(ours.of(chunk), theirs.of(chunk), state, "" if valid else LONE_MARKER))
        told += _masked(ours, theirs, chunk)
    return told


class _Tokens:
    """The tokens of one side by their chunk, those in none by the chunk before them."""

    def __init__(self, side: Side, chunk_id: npt.NDArray[np.int32]) -> None:
        vocabulary, ids = side[0], np.asarray(side[1], dtype=np.int64)
        spaces = set(vocabulary.put_in_spaces(ids).tolist())
        self._inside: dict[int, list[Token]] = {}
        self._behind: dict[int, list[tuple[Token, str]]] = {}
        before = NO_CHUNK
        for place, (number, chunk) in enumerate(zip(ids.tolist(), chunk_id.tolist(), strict=True)):
            token = _told(vocabulary, number, place in spaces)
            if chunk == NO_CHUNK:
                self._behind.setdefault(before, []).append((token, _why_masked(vocabulary, number)))
            else:
                self._inside.setdefault(chunk, []).append(token)
                before = chunk

    def of(self, chunk: int) -> tuple[Token, ...]:
        """The tokens in a chunk."""
        return tuple(self._inside.get(chunk, ()))

    def behind(self, chunk: int) -> list[tuple[Token, str]]:
        """The tokens in no chunk that follow it, each with its reason."""
        return self._behind.get(chunk, [])


def _masked(ours: _Tokens, theirs: _Tokens, chunk: int) -> Iterator[ExplainedChunk]:
    some, others = ours.behind(chunk), theirs.behind(chunk)
    if some or others:
        reasons = {reason for _, reason in (*some, *others)}
        reason = UNKNOWN if UNKNOWN in reasons else NOT_EQUAL
        yield ExplainedChunk(
            tuple(token for token, _ in some), tuple(token for token, _ in others), "masked", reason
        )


def _told(vocabulary: Vocabulary, number: int, begins_with_put_in_space: bool) -> Token:
    if number in vocabulary.names:
        return vocabulary.names[number]
    return vocabulary.bytes_of(number)[1 if begins_with_put_in_space else 0 :]


def _why_masked(vocabulary: Vocabulary, number: int) -> str:
    known = vocabulary.bytes_of(number) or (
        number < len(vocabulary)
        and vocabulary.kinds[number] == SPECIAL
        and number != vocabulary.roles.get("unk")
    )
    return NOT_EQUAL if known else UNKNOWN

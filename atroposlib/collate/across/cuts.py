"""Chunks of two tokenizations as spans of tokens, and which of their boundaries are safe cuts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atroposlib.align.markers import BYTES
from atroposlib.align.streams import Stream
from atroposlib.align.stretches import positions
from atroposlib.collate.across.pair import MARKER, TokenizerPair

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chunks:
    """C minimal chunks that have tokens on both sides, in order.

    Attributes:
        student_begins, student_ends: int64 [C]. Their student tokens.
        teacher_begins, teacher_ends: int64 [C]. Their teacher tokens.
        linked: bool [C]. Whether the chunk begins where the one before it ends, on both sides.
        cut: bool [C]. Whether the boundary before the chunk is a safe cut. The first chunk of linked ones
            always counts as one.
        before: int64 [C, 2]. The byte before each cut on both sides, by which its class is known;
            ``MARKER`` where every token is in it.
        unsafe_start: bool [C]. First chunks whose boundary is no safe cut: nothing is known of a class there.
        one_space: bool [C]. Whether one side's tokenizer put in a space at the begin and the other's did not,
            so that equal tokens are other texts.
    """

    student_begins: Ints
    student_ends: Ints
    teacher_begins: Ints
    teacher_ends: Ints
    linked: Flags
    cut: Flags
    before: Ints
    unsafe_start: Flags
    one_space: Flags

    def __len__(self) -> int:
        """C."""
        return len(self.cut)


def chunks_with_cuts(
    pair: TokenizerPair,
    student_ids: npt.NDArray[np.integer],
    teacher_ids: npt.NDArray[np.integer],
    student_chunk_id: npt.NDArray[np.integer],
    teacher_chunk_id: npt.NDArray[np.integer],
) -> Chunks:
    """The chunks of one sequence, given the chunk of each token, rising and -1 for none.

    Chunks that other tokenizers have made are found out: one whose bytes differ is none.
    """
    streams = pair.streamers[0].stream(student_ids), pair.streamers[1].stream(teacher_ids)
    count = int(max(student_chunk_id.max(initial=-1), teacher_chunk_id.max(initial=-1))) + 1
    ours, theirs = _spans(student_chunk_id, count), _spans(teacher_chunk_id, count)
    valid = _equal(streams[0], ours, streams[1], theirs)
    ours, theirs = (ours[0][valid], ours[1][valid]), (theirs[0][valid], theirs[1][valid])
    linked = np.zeros(len(ours[0]), dtype=np.bool_)
    linked[1:] = (ours[0][1:] == ours[1][:-1]) & (theirs[0][1:] == theirs[1][:-1])
    before = np.stack([_before(streams[0], ours[0]), _before(streams[1], theirs[0])], axis=1)
    behind = _symbols(streams[0], streams[0].starts[ours[0]])
    safe = pair.safe[before[:, 0], behind] & pair.safe[before[:, 1], behind]
    before[~safe] = MARKER
    spaces = [
        np.isin(begins, side.vocabulary.put_in_spaces(ids.astype(np.int64)))
        for side, ids, begins in (
            (pair.student, student_ids, ours[0]),
            (pair.teacher, teacher_ids, theirs[0]),
        )
    ]
    return Chunks(
        *ours, *theirs, linked, safe | ~linked, before, ~safe & ~linked, one_space=spaces[0] != spaces[1]
    )


def _spans(chunk_id: npt.NDArray[np.integer], count: int) -> tuple[Ints, Ints]:
    """Begins and ends int64 [count] of the tokens of each chunk; equal where it is not one run of them."""
    places = np.flatnonzero(chunk_id >= 0)
    inside = chunk_id[places]
    if not len(places) or (np.diff(inside) < 0).any():
        return np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    bounds = np.searchsorted(inside, np.arange(count + 1))
    begins = np.append(places, 0)[bounds[:-1]]
    ends = places[np.maximum(bounds[1:] - 1, 0)] + 1
    return begins, np.where(ends - begins == np.diff(bounds), ends, begins)


def _equal(student: Stream, ours: tuple[Ints, Ints], teacher: Stream, theirs: tuple[Ints, Ints]) -> Flags:
    """bool [C]: chunks with tokens on both sides that are the same symbols."""
    there = (ours[0] < ours[1]) & (theirs[0] < theirs[1])
    begins = [
        stream.starts[np.where(there, span[0], 0)] for stream, span in ((student, ours), (teacher, theirs))
    ]
    lengths = [
        np.where(there, stream.ends[np.where(there, span[1] - 1, 0)] - begin, 0)
        for stream, span, begin in zip((student, teacher), (ours, theirs), begins, strict=True)
    ]
    equal: Flags = there & (lengths[0] == lengths[1])
    first, chunk = positions(begins[0][equal], begins[0][equal] + lengths[0][equal])
    second = first + (begins[1] - begins[0])[equal][chunk]
    equal[np.flatnonzero(equal)[chunk[student.symbols[first] != teacher.symbols[second]]]] = False
    return equal


def _before(stream: Stream, begins: Ints) -> Ints:
    """int64 [C]: the symbol that stands before each of these tokens."""
    return _symbols(stream, stream.starts[begins] - 1)


def _symbols(stream: Stream, at: Ints) -> Ints:
    """int64 [C]: bytes at these places; ``MARKER`` for all that is none, and outside of the text."""
    inside = (at >= 0) & (at < len(stream))
    found = np.append(stream.symbols, MARKER)[np.where(inside, at, len(stream))]
    return np.where((found >= 0) & (found < BYTES), found, MARKER).astype(np.int64)

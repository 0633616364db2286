"""A span of a student's sequence as what its teacher reads: the same bytes, and the teacher's own markers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from atroposlib.align.markers import BYTES
from atroposlib.align.runs import Runs, runs_of
from atroposlib.align.streams import Stream, Streamer

OF_NOBODY = -1
"""Place of what stands in the teacher's sequence and not in the student's."""


@dataclass(frozen=True, slots=True)
class ViewPart:
    """Some of what a teacher reads.

    Attributes:
        value: Text, or a marker's id.
        place: First symbol of the student's stream that it is equal to; ``OF_NOBODY`` where there is none.
    """

    value: str | int
    place: int = OF_NOBODY


def teacher_markers(teacher: Streamer) -> dict[int, int]:
    """The teacher's id of each symbol that both sides have as a marker."""
    ends = [teacher.vocabulary.roles.get(role) for role in ("end_of_turn", "eos")]
    # Where one symbol is several tokens, the end of a text is meant rather than any other.
    ordered = sorted(teacher.symbols.items(), key=lambda item: (item[0] in ends, item[0] == ends[-1]))
    return {symbol: number for number, symbol in ordered if symbol >= BYTES}


@dataclass(frozen=True, slots=True)
class StudentText:
    """A student's sequence [T] and what its markers are to the teacher.

    Attributes:
        stream: Its stream of symbols.
        markers: The teacher's id of each symbol that is a marker of both (:func:`teacher_markers`).
    """

    stream: Stream
    markers: dict[int, int]

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The symbols of the tokens from ``first`` to before ``last``."""
        if first >= last:
            return 0, 0
        return int(self.stream.starts[first]), int(self.stream.ends[last - 1])

    def marker_at(self, token: int) -> ViewPart | None:
        """The teacher's marker for a token that is one of both sides; None at the end and for any other."""
        if token >= len(self.stream.starts):
            return None
        place = int(self.stream.starts[token])
        number = self.markers.get(int(self.stream.symbols[place])) if place < len(self.stream) else None
        return None if number is None else ViewPart(number, place)

    def parts(self, begin: int, end: int) -> tuple[list[ViewPart], int]:
        """The parts that stand for the symbols from ``begin`` to ``end``, and where whole characters end.

        Markers that the teacher lacks and unknown text are left out. Bytes that are no characters are shown
        as U+FFFD, which is equal to nothing, and at the end of the span not at all.
        """
        symbols = self.stream.symbols[begin:end]
        is_byte = (symbols >= 0) & (symbols < BYTES)
        changes = (np.flatnonzero(is_byte[1:] != is_byte[:-1]) + 1).tolist()
        parts: list[ViewPart] = []
        whole = end
        for first, last in zip([0, *changes], [*changes, len(symbols)], strict=True):
            if first < last and is_byte[first]:
                texts, left = _characters(symbols[first:last].astype(np.uint8).tobytes(), begin + first)
                parts += texts
                whole = end - left if last == len(symbols) else end
            else:
                for at in range(first, last):
                    if (number := self.markers.get(int(symbols[at]))) is not None:
                        parts.append(ViewPart(number, begin + at))
        return parts, whole


def _characters(text: bytes, place: int) -> tuple[list[ViewPart], int]:
    """The characters of some bytes, and how many bytes at the end are the begin of one."""
    parts = []
    done = 0
    rest = memoryview(text)
    while rest:
        try:
            parts.append(ViewPart(str(rest, "utf-8"), place + done))
            return parts, 0
        except UnicodeDecodeError as error:
            if error.start:
                parts.append(ViewPart(str(rest[: error.start], "utf-8"), place + done))
            if error.end == len(rest) and error.reason == "unexpected end of data":
                return parts, error.end - error.start
            parts.append(ViewPart("\ufffd"))
            done += error.end
            rest = rest[error.end :]
    return parts, 0


def runs_through(places: list[tuple[int, int, int]], teacher: Runs) -> Runs:
    """Where a student's stream equals a teacher's, through a third that both are compared with.

    Args:
        places: Runs of the student's stream and the third: first symbol in each, and length; rising in the
            third.
        teacher: Runs of the teacher's stream (``student``) and the third (``teacher``).
    """
    found: list[tuple[int, int, int]] = []
    done = 0
    for place in places:
        for run in _within(place, teacher):
            # A template that moves what was said changes its order.
            if run[0] >= done:
                found.append(run)
                done = run[0] + run[2]
    return runs_of(found)


def _within(place: tuple[int, int, int], teacher: Runs) -> Iterator[tuple[int, int, int]]:
    student, begin, length = place
    ends = teacher.teacher + teacher.lengths
    first = int(np.searchsorted(ends, begin, side="right"))
    last = int(np.searchsorted(teacher.teacher, begin + length))
    for run in range(first, last):
        at = max(begin, int(teacher.teacher[run]))
        stop = min(begin + length, int(ends[run]))
        if stop > at:
            yield student + at - begin, int(teacher.student[run]) + at - int(teacher.teacher[run]), stop - at

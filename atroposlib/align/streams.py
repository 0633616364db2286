"""A sequence of token ids as a stream of symbols: the bytes of its text, and one symbol a marker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atroposlib.align.markers import BYTES, is_lone_marker, marker_symbols, symbol_table
from atroposlib.align.tables.table import Vocabulary


@dataclass(frozen=True, slots=True)
class Stream:
    """One sequence. T tokens, N symbols.

    Attributes:
        symbols: int32 [N]. Bytes are 0 to 255; other values are markers and unknown text.
        starts: int64 [T]. Where each token begins.
        ends: int64 [T]. Where it ends; a token whose only byte is a space that was put in is empty.
    """

    symbols: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """N."""
        return len(self.symbols)

    def markers_in(self, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """How many symbols of each stretch are markers, int64 [P], whether the other side has them or not."""
        places = np.flatnonzero((self.symbols >= BYTES) | is_lone_marker(self.symbols))
        before = np.searchsorted(places, [begins, ends])
        counts: npt.NDArray[np.int64] = before[1] - before[0]
        return counts


class Streamer:
    """Makes the streams of one vocabulary in a pair.

    Args:
        vocabulary: The byte table.
        symbols: The symbol of each of its markers, by id.
        side: 0 for the student, 1 for the teacher.
    """

    def __init__(self, vocabulary: Vocabulary, symbols: dict[int, int], side: int) -> None:
        self.vocabulary = vocabulary
        self.symbols = symbols
        self._values, self._begins, self._counts = symbol_table(vocabulary, symbols, side)

    def stream(self, ids: npt.ArrayLike) -> Stream:
        """The stream of a sequence of ids [T], from the begin of a text."""
        wanted = np.asarray(ids, dtype=np.int64)
        numbers = np.where((wanted < 0) | (wanted >= len(self.vocabulary)), len(self.vocabulary), wanted)
        begins, counts = self._begins[numbers], self._counts[numbers]
        for position in self.vocabulary.put_in_spaces(wanted):
            begins[position] += 1
            counts[position] -= 1
        ends = np.cumsum(counts)
        starts = ends - counts
        where = np.repeat(begins - starts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)
        return Stream(self._values[where], starts, ends)


def streamers(student: Vocabulary, teacher: Vocabulary) -> tuple[Streamer, Streamer]:
    """What makes the streams of a pair of vocabularies, the student's first."""
    ours, theirs = marker_symbols(student, teacher)
    return Streamer(student, ours, 0), Streamer(teacher, theirs, 1)

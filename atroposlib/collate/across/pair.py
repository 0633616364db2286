"""What the losses across tokenizers know of two vocabularies: first bytes, safe cuts, common outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from atroposlib.align.streams import Streamer, streamers
from atroposlib.align.vocabulary import Vocabulary, named_path, read_vocabulary
from atroposlib.projection.bigrams import safe_bigrams
from atroposlib.projection.kept import kept_quotient
from atroposlib.projection.quotient import Quotient
from atroposlib.projection.splits import NO_ID

MARKER = 256
"""The symbol of an id that stands for no bytes: a marker, or nothing at all."""

BLANKS = np.frombuffer(b" \t\n\v\f\r", dtype=np.uint8)
"""Bytes whose runs tokenizers cut by looking ahead, so that no cut between two of them is safe."""


@dataclass(frozen=True, eq=False)
class Side:
    """One vocabulary. V ids; entry V of each array is that of ids outside of the table.

    Attributes:
        vocabulary: The byte table.
        first: int16 [V + 1]. The first byte of each id, :data:`MARKER` where it stands for none.
        last: int16 [V + 1]. The last byte, likewise.
        component: int32 [V + 1]. The common outcome that it belongs to, ``NO_ID`` for none.
    """

    vocabulary: Vocabulary
    first: npt.NDArray[np.int16]
    last: npt.NDArray[np.int16]
    component: npt.NDArray[np.int32]

    def rows(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Where ids stand in the arrays."""
        known = (ids >= 0) & (ids < len(self.vocabulary))
        return np.where(known, ids, len(self.vocabulary)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class TokenizerPair:
    """Two vocabularies and their C common outcomes.

    Attributes:
        student, teacher: The two sides.
        streamers: What makes their streams of symbols.
        safe: bool [257, 257]. Whether a cut between the row's symbol and the column's is the end of a token
            in both vocabularies, whatever stands around it; :data:`MARKER` makes any cut safe.
        teacher_sizes: int64 [C]. Ids that the teacher has of each component.
        member_offsets: int64 [C + 1]. Component c has the student's ids
            ``members[member_offsets[c]:member_offsets[c + 1]]``.
        members: int64 [*].
    """

    student: Side
    teacher: Side
    streamers: tuple[Streamer, Streamer]
    safe: npt.NDArray[np.bool_]
    teacher_sizes: npt.NDArray[np.int64]
    member_offsets: npt.NDArray[np.int64]
    members: npt.NDArray[np.int64]

    @classmethod
    def load(
        cls, student: str | Path, teacher: str | Path, *, cache_dir: Path | None = None
    ) -> TokenizerPair:
        """The pair of two tokenizers; what was computed before comes out of a file.

        Args:
            student: A directory with tokenizer.json, or a hub id.
            teacher: Likewise.
            cache_dir: Directory of kept quotients; ``quotients`` in $ATROPOS_CACHE when omitted.

        Raises:
            ConfigError: Files that cannot be read (``usage.file``, ``usage.model``), or not as bytes
                (``align.unsupported``).
        """
        vocabularies = read_vocabulary(named_path(student)), read_vocabulary(named_path(teacher))
        return cls.of(*vocabularies, kept_quotient(student, teacher, cache_dir=cache_dir))

    @classmethod
    def of(cls, student: Vocabulary, teacher: Vocabulary, quotient: Quotient) -> TokenizerPair:
        """The pair of two byte tables, given their components."""
        pair = streamers(student, teacher)
        edges = _edges(pair[0]), _edges(pair[1])
        runs = np.concatenate([_blank_runs(student), _blank_runs(teacher)])
        ours, theirs = _by_first_symbol(quotient, edges[0][0], edges[1][0], runs)
        sizes = int(ours.max(initial=NO_ID)) + 1
        listed = np.flatnonzero(ours != NO_ID)
        return cls(
            student=Side(student, *edges[0], np.append(ours, np.int32(NO_ID))),
            teacher=Side(teacher, *edges[1], np.append(theirs, np.int32(NO_ID))),
            streamers=pair,
            safe=_safe_cuts(student, teacher),
            teacher_sizes=np.bincount(theirs[theirs != NO_ID], minlength=sizes),
            member_offsets=np.append(0, np.cumsum(np.bincount(ours[listed], minlength=sizes))),
            members=listed[np.argsort(ours[listed], kind="stable")],
        )


def _edges(streamer: Streamer) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """First and last symbols int16 [V + 1]."""
    vocabulary = streamer.vocabulary
    begins, ends = vocabulary.offsets[:-1], vocabulary.offsets[1:]
    text = begins < ends
    # Some markers are written as text.
    text[list(streamer.symbols)] = False
    numbers = np.flatnonzero(text)
    first = np.full(len(vocabulary) + 1, MARKER, dtype=np.int16)
    last = first.copy()
    first[numbers] = vocabulary.blob[begins[numbers]]
    last[numbers] = vocabulary.blob[ends[numbers] - 1]
    return first, last


def _blank_runs(vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
    """bool [V]: ids that stand for blanks alone."""
    blanks = np.append(0, np.cumsum(np.isin(vocabulary.blob, BLANKS)))[vocabulary.offsets]
    found: npt.NDArray[np.bool_] = (np.diff(blanks) > 0) & (np.diff(blanks) == np.diff(vocabulary.offsets))
    return found


def _by_first_symbol(
    quotient: Quotient,
    student_first: npt.NDArray[np.int16],
    teacher_first: npt.NDArray[np.int16],
    runs: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Components of ids with one first symbol, numbered anew; runs of blanks that begin alike are one.

    They share it already, but where a marker of one side is written as text on the other. Which run a
    tokenizer writes first depends on what stands behind it: SmolLM2 writes two line ends before a letter as
    two tokens, Gemma as one, so they have to be one outcome. The path of the chunk tells them apart.
    """
    components = np.concatenate([quotient.student, quotient.teacher]).astype(np.int64)
    symbols = np.concatenate([student_first[:-1], teacher_first[:-1]])
    for blank in BLANKS:
        together = np.unique(components[runs & (symbols == blank) & (components != NO_ID)])
        components[np.isin(components, together)] = together.min(initial=len(quotient))
    sides = np.arange(len(components)) >= len(quotient.student)
    keys = np.where(components == NO_ID, NO_ID, components * (MARKER + 1) + symbols)
    both = np.intersect1d(keys[~sides], keys[sides])
    both = both[both != NO_ID]
    numbered = np.searchsorted(both, keys)
    found = np.append(both, NO_ID)[numbered] == keys
    of_both: npt.NDArray[np.int32] = np.where(found & (keys != NO_ID), numbered, NO_ID).astype(np.int32)
    return of_both[~sides], of_both[sides]


def _safe_cuts(student: Vocabulary, teacher: Vocabulary) -> npt.NDArray[np.bool_]:
    safe = np.ones((MARKER + 1, MARKER + 1), dtype=np.bool_)
    safe[:MARKER, :MARKER] = safe_bigrams(student, teacher)
    safe[np.ix_(BLANKS, BLANKS)] = False
    return safe

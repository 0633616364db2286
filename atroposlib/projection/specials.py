"""Which special tokens a projection maps: those that pair by role or name, then those with similar names."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher

import numpy as np

from atroposlib.align.markers import BYTES, marker_symbols
from atroposlib.align.tables.table import Vocabulary
from atroposlib.projection.rows import Cells

LEAST_SIMILAR = 0.3
"""Similarity from which two names are mapped."""

MOST_SIMILAR_KEPT = 3
"""Teacher tokens that a student's token is mapped to by similarity."""

SIMILAR_WEIGHT = 0.8
"""Weight of a similar name, times the similarity; a pair has weight 1."""

MOST_NUMBERED = 4
"""Names that differ in their numbers alone, above which they are fillers that stand for nothing yet."""

_NAME_SHARE, _WORD_SHARE = 0.6, 0.4
_SHORTEST_WORD = 3


def special_cells(student: Vocabulary, teacher: Vocabulary) -> tuple[Cells, dict[int, int]]:
    """What the markers of two vocabularies are to each other.

    Returns:
        The cells of all of them, and the pairs, by student id, that have only each other.
    """
    pairs = _pairs(student, teacher)
    ours = [number for number in _named(student) if number not in pairs]
    theirs = {number: teacher.names[number] for number in _named(teacher)}
    entries = [(number, other, 1.0) for number, others in pairs.items() for other in others]
    for number in ours:
        entries += [
            (number, other, SIMILAR_WEIGHT * similarity)
            for other, similarity in _similar(student.names[number], theirs)
        ]
    table = np.array(entries, dtype=np.float64).reshape(-1, 3)
    cells = Cells(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2])
    return cells, {number: others[0] for number, others in pairs.items() if len(others) == 1}


def _pairs(student: Vocabulary, teacher: Vocabulary) -> dict[int, list[int]]:
    ours, theirs = marker_symbols(student, teacher)
    by_symbol: dict[int, list[int]] = {}
    for number, symbol in sorted(theirs.items()):
        by_symbol.setdefault(symbol, []).append(number)
    return {number: by_symbol[symbol] for number, symbol in sorted(ours.items()) if symbol >= BYTES}


def _named(vocabulary: Vocabulary) -> list[int]:
    """Markers whose names mean something: not the fillers, of which there can be thousands."""
    stems = {number: re.sub(r"\d+", "#", name) for number, name in vocabulary.names.items()}
    counts = Counter(stems.values())
    unknown = vocabulary.roles.get("unk")
    return [number for number, stem in stems.items() if counts[stem] <= MOST_NUMBERED and number != unknown]


def _similar(name: str, others: dict[int, str]) -> list[tuple[int, float]]:
    matcher = SequenceMatcher(None, autojunk=False)
    matcher.set_seq2(name)
    found = []
    for number, other in others.items():
        matcher.set_seq1(other)
        similarity = _NAME_SHARE * matcher.ratio() + _WORD_SHARE * _shared_words(name, other)
        if similarity >= LEAST_SIMILAR:
            found.append((number, similarity))
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:MOST_SIMILAR_KEPT]


def _shared_words(name: str, other: str) -> float:
    """Jaccard index of the words in two names."""
    words = [
        {word for word in re.split(r"[^a-z0-9]+", one.lower()) if len(word) >= _SHORTEST_WORD}
        for one in (name, other)
    ]
    union = words[0] | words[1]
    return len(words[0] & words[1]) / len(union) if union else 0.0

"""Whether two vocabularies give every id the same meaning, so that ids need no alignment."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.table import SPECIAL, UNUSED, Vocabulary

COMPARED_ROLES = ("end_of_turn", "think_open", "think_close")
"""Roles that are the vocabulary's own. What begins and ends a text and what fills a batch are settings of a
checkpoint: the base and the chat model of one family differ in them."""


@dataclass(frozen=True, slots=True)
class VocabularyMatch:
    """How a student's vocabulary and a teacher's agree.

    Attributes:
        same: Whether every id says the same on both sides, so that positions are one to one.
        differing: Ids that do not, those that only one side has among them.
        overlap: Share of the student's distinct byte strings that the teacher has as a token too.
        reason: Why they are not the same, in words; empty when they are.
    """

    same: bool
    differing: int
    overlap: float
    reason: str


def compare(student: Vocabulary, teacher: Vocabulary) -> VocabularyMatch:
    """Compare what the ids of two vocabularies stand for.

    Two ids agree when they are written by the same bytes, or when both are special: how those are called does
    not matter. A special id beside one that is text is written by its name. Merges, normalisation and the
    width of the models' heads do not enter: they change which ids a text gets, not what an id says.
    """
    if student.fingerprint == teacher.fingerprint:
        return VocabularyMatch(True, 0, 1.0, "")
    differs = _differing_ids(student, teacher)
    overlap = _overlap(student, teacher) if len(differs) else 1.0
    reason = _other_ids(student, teacher, differs) or _other_roles(student, teacher)
    return VocabularyMatch(not reason, len(differs), overlap, reason)


def _differing_ids(student: Vocabulary, teacher: Vocabulary) -> npt.NDArray[np.int64]:
    shared = min(len(student), len(teacher))
    lengths = np.diff(student.offsets[: shared + 1])
    equal = lengths == np.diff(teacher.offsets[: shared + 1])
    alike = np.flatnonzero(equal)
    unequal_bytes = _bytes_in_a_row(student, alike) != _bytes_in_a_row(teacher, alike)
    equal[np.repeat(alike, lengths[alike])[unequal_bytes]] = False
    special = student.kinds[:shared] == SPECIAL, teacher.kinds[:shared] == SPECIAL
    equal |= special[0] & special[1]
    for number in np.flatnonzero(special[0] ^ special[1]).tolist():
        equal[number] = _written(student, number) == _written(teacher, number)
    longer = student if len(student) > shared else teacher
    only_one_has = np.flatnonzero(longer.kinds[shared:] != UNUSED) + shared
    return np.concatenate([np.flatnonzero(~equal), only_one_has])


def _bytes_in_a_row(vocabulary: Vocabulary, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    begins = vocabulary.offsets[ids]
    lengths = vocabulary.offsets[ids + 1] - begins
    before = np.cumsum(lengths) - lengths
    found: npt.NDArray[np.uint8] = vocabulary.blob[
        np.repeat(begins - before, lengths) + np.arange(int(lengths.sum()))
    ]
    return found


def _written(vocabulary: Vocabulary, number: int) -> bytes:
    name = vocabulary.names.get(number)
    return vocabulary.bytes_of(number) if name is None else name.encode()


def _overlap(student: Vocabulary, teacher: Vocabulary) -> float:
    ours, theirs = _distinct(student), _distinct(teacher)
    return len(ours & theirs) / len(ours) if ours else 0.0


def _distinct(vocabulary: Vocabulary) -> set[bytes]:
    blob, offsets = vocabulary.blob.tobytes(), vocabulary.offsets.tolist()
    return {blob[begin:end] for begin, end in itertools.pairwise(offsets) if begin < end}


def _other_ids(student: Vocabulary, teacher: Vocabulary, differs: npt.NDArray[np.int64]) -> str:
    if not len(differs):
        return ""
    number = int(differs[0])
    return (
        f"{len(differs)} ids differ, the first is {number}: "
        f"{_told(student, number)} to the student, {_told(teacher, number)} to the teacher"
    )


def _told(vocabulary: Vocabulary, number: int) -> str:
    if number >= len(vocabulary) or vocabulary.kinds[number] == UNUSED:
        return "no token"
    return repr(_written(vocabulary, number))


def _other_roles(student: Vocabulary, teacher: Vocabulary) -> str:
    for role in COMPARED_ROLES:
        ours, theirs = student.roles.get(role), teacher.roles.get(role)
        if ours is not None and theirs is not None and ours != theirs:
            return f"{role} is id {ours} to the student, {theirs} to the teacher"
    return ""

"""Which special tokens of two vocabularies are the same: paired by role, or by name where they have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.table import SPECIAL, UNUSED, Vocabulary

PAIRED_ROLES = ("bos", "eos", "end_of_turn", "think_open", "think_close")
"""Roles that pair tokens. Padding is no part of a sequence, and what is unknown is not known to be equal."""

BYTES = 256
"""Symbols below this are bytes; those from here on are markers that both vocabularies have."""

LONE_MARKERS = (-2, -3)
"""Symbols of a marker that the other side lacks: the student's, the teacher's. They never agree."""

UNKNOWN_TEXT = (-4, -5)
"""Symbols of ids that stand for nobody knows what: the student's, the teacher's. They never agree."""


def is_lone_marker(symbols: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """bool [N]: which symbols of a stream are markers that the other side lacks."""
    found: npt.NDArray[np.bool_] = (symbols == LONE_MARKERS[0]) | (symbols == LONE_MARKERS[1])
    return found


def marker_symbols(student: Vocabulary, teacher: Vocabulary) -> tuple[dict[int, int], dict[int, int]]:
    """The symbol of every id that is compared as a marker, not by its bytes, for both vocabularies.

    Two markers are the same symbol when they have a role in common (:data:`PAIRED_ROLES`), or when they have
    no role and one name. A token with several roles, such as an end of text that also ends turns, joins all
    tokens that have one of them. Thinking markers that are plain text on both sides stay bytes.
    """
    groups: list[tuple[set[int], set[int]]] = []
    for pair in _pairs_by_role(student, teacher):
        joined = [group for group in groups if pair[0] in group[0] or pair[1] in group[1]]
        groups = [group for group in groups if group not in joined]
        groups.append(
            (
                {pair[0]}.union(*(group[0] for group in joined)),
                {pair[1]}.union(*(group[1] for group in joined)),
            )
        )
    # Each of these is a group of its own, and there may be many thousands.
    groups += [({ours}, {theirs}) for ours, theirs in _pairs_by_name(student, teacher)]
    return _symbols(student, groups, 0), _symbols(teacher, groups, 1)


def _pairs_by_role(student: Vocabulary, teacher: Vocabulary) -> Iterator[tuple[int, int]]:
    for role in PAIRED_ROLES:
        ours, theirs = student.roles.get(role), teacher.roles.get(role)
        if ours is not None and theirs is not None and _is_marker(student, ours, teacher, theirs):
            yield ours, theirs


def _pairs_by_name(student: Vocabulary, teacher: Vocabulary) -> Iterator[tuple[int, int]]:
    ours_with_role, theirs_with_role = set(student.roles.values()), set(teacher.roles.values())
    theirs = {name: number for number, name in teacher.names.items() if number not in theirs_with_role}
    for number, name in student.names.items():
        if number not in ours_with_role and name in theirs:
            yield number, theirs[name]


def _is_marker(student: Vocabulary, ours: int, teacher: Vocabulary, theirs: int) -> bool:
    return bool(student.kinds[ours] == SPECIAL or teacher.kinds[theirs] == SPECIAL)


def _symbols(vocabulary: Vocabulary, groups: list[tuple[set[int], set[int]]], side: int) -> dict[int, int]:
    special = np.flatnonzero(vocabulary.kinds == SPECIAL).tolist()
    found = dict.fromkeys(special, LONE_MARKERS[side])
    found |= {number: BYTES + index for index, group in enumerate(groups) for number in group[side]}
    unknown = vocabulary.roles.get("unk")
    if unknown is not None and vocabulary.kinds[unknown] == SPECIAL and found[unknown] < BYTES:
        found[unknown] = UNKNOWN_TEXT[side]
    return found


def symbol_table(
    vocabulary: Vocabulary, symbols: Mapping[int, int], side: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """What each id is in a stream of symbols: bytes, one marker, or one sign of the unknown.

    Args:
        vocabulary: V ids.
        symbols: Of its markers, by id.
        side: 0 for the student, 1 for the teacher.

    Returns:
        Values int32 [N], and for each id its first value and its number of values, int64 [V + 1]. The last
        of them is that of ids outside the table.
    """
    markers = np.array(sorted(symbols), dtype=np.int64)
    unknown = np.flatnonzero(vocabulary.kinds == UNUSED)
    begins = np.append(vocabulary.offsets[:-1], 0)
    counts = np.append(np.diff(vocabulary.offsets), 1)
    bytes_end = len(vocabulary.blob)
    values = np.empty(bytes_end + 1 + len(markers), dtype=np.int32)
    values[:bytes_end] = vocabulary.blob
    values[bytes_end] = UNKNOWN_TEXT[side]
    values[bytes_end + 1 :] = [symbols[number] for number in markers.tolist()]
    begins[-1] = bytes_end
    begins[unknown], counts[unknown] = bytes_end, 1
    begins[markers] = bytes_end + 1 + np.arange(len(markers))
    counts[markers] = 1
    return values, begins, counts

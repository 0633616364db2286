"""What is known of two vocabularies, against brute force over their tokens."""

from __future__ import annotations

import numpy as np

from atroposlib.align.tables.table import SPECIAL
from atroposlib.collate.across import TokenizerPair
from atroposlib.collate.across.pair import MARKER
from atroposlib.projection.quotient import Quotient
from tests.support.real_tokenizers import directory_of, library
from tests.support.toy_losses import components, is_safe
from tests.support.toy_world import LETTERS, SIDES, toy_pair


def test_cuts_are_safe_where_no_token_holds_both_bytes_and_not_between_blanks() -> None:
    pair = toy_pair()
    for before in LETTERS:
        for behind in LETTERS:
            assert pair.safe[before, behind] == is_safe(SIDES, before, behind)
    assert pair.safe[MARKER].all()
    assert pair.safe[:, MARKER].all()
    assert not pair.safe[ord("\n"), ord(" ")]


def test_components_join_what_begins_the_same_text() -> None:
    pair = toy_pair()
    expected = components(SIDES)
    for side, labels in zip((pair.student, pair.teacher), expected, strict=True):
        found = {number: int(side.component[number]) for number in labels}
        # The same partition under other names.
        assert len(set(zip(found.values(), labels.values(), strict=True))) == len(set(labels.values()))
    sizes = np.bincount(pair.teacher.component[:-1])
    np.testing.assert_array_equal(pair.teacher_sizes, sizes)
    for component in range(len(sizes)):
        members = pair.members[pair.member_offsets[component] : pair.member_offsets[component + 1]]
        np.testing.assert_array_equal(members, np.flatnonzero(pair.student.component[:-1] == component))


def test_ids_outside_of_the_table_stand_for_nothing() -> None:
    side = toy_pair().student
    rows = side.rows(np.array([-1, 0, len(side.vocabulary), 10**6]))
    assert rows.tolist() == [len(side.vocabulary), 0, len(side.vocabulary), len(side.vocabulary)]
    assert side.first[rows[0]] == MARKER
    assert side.component[rows[0]] == -1


def test_a_component_of_a_marker_and_of_text_is_taken_apart() -> None:
    vocabularies = [side.vocabulary() for side in SIDES]
    student = np.full(len(vocabularies[0]), -1, dtype=np.int32)
    teacher = np.full(len(vocabularies[1]), -1, dtype=np.int32)
    # The student's "a" and its marker, the teacher's "a" and its marker, all joined.
    student[[0, SIDES[0].bos]] = teacher[[0, SIDES[1].bos]] = 0
    pair = TokenizerPair.of(*vocabularies, Quotient(student, teacher))
    assert pair.student.component[0] == pair.teacher.component[0]
    assert pair.student.component[SIDES[0].bos] == pair.teacher.component[SIDES[1].bos]
    assert pair.student.component[0] != pair.student.component[SIDES[0].bos]


def test_a_component_of_one_side_alone_is_none() -> None:
    vocabularies = [side.vocabulary() for side in SIDES]
    student = np.full(len(vocabularies[0]), -1, dtype=np.int32)
    teacher = np.full(len(vocabularies[1]), -1, dtype=np.int32)
    student[0], teacher[SIDES[1].bos] = 0, 0
    pair = TokenizerPair.of(*vocabularies, Quotient(student, teacher))
    assert pair.student.component.max() == pair.teacher.component.max() == -1
    assert len(pair.members) == 0


def test_tokens_of_a_real_component_begin_with_one_byte() -> None:
    pair = TokenizerPair.load(directory_of("smollm2"), directory_of("gemma3"))
    firsts: dict[int, set[int]] = {}
    for side in (pair.student, pair.teacher):
        listed = np.flatnonzero(side.component >= 0)
        for component, first in zip(
            side.component[listed].tolist(), side.first[listed].tolist(), strict=True
        ):
            firsts.setdefault(component, set()).add(first)
        special = np.flatnonzero(side.vocabulary.kinds == SPECIAL)
        assert (side.first[special] == MARKER).all()
    assert len(firsts) == len(pair.teacher_sizes) > 20_000
    assert all(len(found) == 1 for found in firsts.values())
    assert (np.diff(pair.member_offsets) > 0).all()
    assert (pair.teacher_sizes > 0).all()


def test_runs_of_blanks_that_begin_alike_are_one_outcome() -> None:
    """SmolLM2 writes two line ends before a letter as two tokens, Gemma as one."""
    pair = TokenizerPair.load(directory_of("smollm2"), directory_of("gemma3"))
    ids = [
        [library(name).encode(text, add_special_tokens=False).ids[0] for text in ("\nX", "\n\nX", "\n\n\nX")]
        for name in ("smollm2", "gemma3")
    ]
    assert len(set(ids[0])) < len(set(ids[1]))
    found = [side.component[one] for side, one in zip((pair.student, pair.teacher), ids, strict=True)]
    assert len(set(np.concatenate(found).tolist())) == 1
    assert found[0][0] != pair.student.component[library("smollm2").encode(" ").ids[0]]

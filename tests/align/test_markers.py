"""Markers: paired by what they are for, alone where the other side lacks them, and never equal to text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.chunks import Alignment
from tests.support.tokenizer_files import added, byte_level, write

FIRST = 259
"""The id of the first marker; bytes are their own ids."""


def tokenizer(directory: Path, markers: list[str], **config: str) -> str:
    """A byte-level tokenizer with these markers, numbered from :data:`FIRST` on."""
    content = byte_level()
    content["added_tokens"] = [added(FIRST + index, name) for index, name in enumerate(markers)]
    return str(write(directory, content, config))


def aligned(tmp_path: Path, student: Any, teacher: Any, ours: list[int], theirs: list[int]) -> Alignment:
    names = (
        tokenizer(tmp_path / "student", *student[:1], **student[1]),
        tokenizer(tmp_path / "teacher", *teacher[:1], **teacher[1]),
    )
    return TokenAligner(*names).align_ids(ours, theirs)


def told(alignment: Alignment) -> tuple[list[int], list[int], list[bool]]:
    return (
        alignment.student_chunk_id.tolist(),
        alignment.teacher_chunk_id.tolist(),
        alignment.valid.tolist(),
    )


@pytest.mark.parametrize("role", ["bos", "eos"])
def test_markers_of_one_role_pair_whatever_they_are_called(tmp_path: Path, role: str) -> None:
    found = aligned(
        tmp_path,
        (["<one>"], {f"{role}_token": "<one>"}),
        (["<other>"], {f"{role}_token": "<other>"}),
        [FIRST, *b"a"],
        [FIRST, *b"a"],
    )
    assert told(found) == ([0, 1], [0, 1], [True, True])


def test_ends_of_turns_pair_with_ends_of_texts_that_also_end_turns(tmp_path: Path) -> None:
    """The teacher has one token for both, the student one for each: either of them is its counterpart."""
    student = ["<|im_end|>", "<|endoftext|>"], {"eos_token": "<|endoftext|>", "chat_template": "<|im_end|>"}
    teacher = ["</s>"], {"eos_token": "</s>"}
    for ours in (FIRST, FIRST + 1):
        place = tmp_path / str(ours)
        found = aligned(place, student, teacher, [*b"a", ours], [*b"a", FIRST])
        assert told(found) == ([0, 1], [0, 1], [True, True])


def test_markers_without_a_role_pair_by_name(tmp_path: Path) -> None:
    found = aligned(tmp_path, (["<x>", "<tool>"], {}), (["<tool>"], {}), [FIRST + 1, *b"a"], [FIRST, *b"a"])
    assert told(found) == ([0, 1], [0, 1], [True, True])


def test_a_lone_marker_is_a_chunk_of_its_own_with_nothing_beside_it(tmp_path: Path) -> None:
    found = aligned(
        tmp_path, (["<mine>"], {}), (["<theirs>"], {}), [*b"ab", FIRST, *b"cd"], [*b"ab", *b"cd", FIRST]
    )
    assert told(found) == (
        [0, 1, 2, 3, 4],
        [0, 1, 3, 4, 5],
        [True, True, False, True, True, False],
    )


def test_two_lone_markers_at_one_place_do_not_pair(tmp_path: Path) -> None:
    found = aligned(tmp_path, (["<mine>"], {}), (["<theirs>"], {}), [*b"a", FIRST], [*b"a", FIRST])
    assert told(found) == ([0, 1], [0, 2], [True, False, False])


def test_a_marker_is_not_the_text_that_spells_it(tmp_path: Path) -> None:
    text = list(b"<tool>")
    found = aligned(tmp_path, (["<tool>"], {}), (["<tool>"], {}), [*b"ab", FIRST], [*b"ab", *text])
    assert told(found)[0] == [0, 1, -1]
    assert told(found)[1] == [0, 1] + [-1] * len(text)


def test_a_thinking_marker_that_is_text_on_one_side_pairs_by_its_role(tmp_path: Path) -> None:
    content = byte_level()
    content["added_tokens"] = [
        added(FIRST + index, name, special=False) for index, name in enumerate(("<think>", "</think>"))
    ]
    teacher = str(write(tmp_path / "teacher", content))
    student = tokenizer(tmp_path / "student", ["</think>", "<think>"])
    found = TokenAligner(student, teacher).align_ids([FIRST + 1, *b"a", FIRST], [FIRST, *b"a", FIRST + 1])
    assert told(found) == ([0, 1, 2], [0, 1, 2], [True] * 3)


def test_unknown_text_never_pairs(tmp_path: Path) -> None:
    marked = (["<unk>"], {"unk_token": "<unk>"})
    found = aligned(tmp_path, marked, marked, [*b"abcd", FIRST, *b"efgh"], [*b"abcd", FIRST, *b"efgh"])
    assert told(found)[0] == [0, 1, 2, 3, -1, 4, 5, 6, 7]


def test_ids_without_a_token_never_pair(tmp_path: Path) -> None:
    found = aligned(tmp_path, ([], {}), ([], {}), [*b"abcd", 999, *b"efgh"], [*b"abcd", 999, *b"efgh"])
    assert told(found)[1] == [0, 1, 2, 3, -1, 4, 5, 6, 7]


def test_many_thousands_of_markers_take_no_time_of_note(tmp_path: Path) -> None:
    """A real vocabulary has 26,000; a step that looks at all pairs of them would not end here."""
    names = [f"<unused{index}>" for index in range(26_000)]
    one, other = tokenizer(tmp_path / "one", names), tokenizer(tmp_path / "other", names[::-1])
    found = TokenAligner(one, other).align_ids([FIRST, *b"a"], [FIRST + 25_999, *b"a"])
    assert told(found) == ([0, 1], [0, 1], [True, True])

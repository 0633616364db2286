"""Rows in the student's ids: only where one id of each says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.envs.teacher_exact import exact_ids, projected
from atroposlib.envs.teacher_views import Aligned
from tests.support.tiny import write_tokenizer
from tests.support.tiny_teacher import FIRST_MARKER, write_merging_tokenizer

STUDENT_END = 258
LETTER = "Ñı"
"""The two bytes of я as byte-level pieces write them."""


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Of the tiny tokenizer, and of the one with merges."""
    found = tmp_path / "student", tmp_path / "teacher"
    for directory, write in zip(found, (write_tokenizer, write_merging_tokenizer), strict=True):
        directory.mkdir()
        write(directory)
    return found


def test_bytes_and_markers_have_one_id_each_and_merges_none(directories: tuple[Path, Path]) -> None:
    found = exact_ids(*directories).tolist()
    assert found[:256] == list(range(256))
    assert found[256:FIRST_MARKER] == [-1] * (FIRST_MARKER - 256)
    # The student has no begin of a text, and calls the begin of a turn otherwise.
    assert found[FIRST_MARKER:] == [-1, -1, STUDENT_END]


def with_piece(directory: Path, piece: str, number: int) -> dict[str, Any]:
    """The tokenizer.json of a directory with one more piece; still to be written."""
    content: dict[str, Any] = json.loads((directory / "tokenizer.json").read_text("utf-8"))
    content["model"]["vocab"][piece] = number
    return content


def test_text_that_several_student_ids_say_has_none(directories: tuple[Path, Path]) -> None:
    student, teacher = directories
    # Byte by byte, and as it is: both are the two bytes of the letter.
    ours, theirs = with_piece(student, LETTER, 259), with_piece(teacher, LETTER, FIRST_MARKER + 3)
    (teacher / "tokenizer.json").write_text(json.dumps(theirs), encoding="utf-8")
    (student / "tokenizer.json").write_text(json.dumps(ours), encoding="utf-8")
    assert exact_ids(student, teacher).tolist()[FIRST_MARKER + 3] == 259
    ours["added_tokens"].append(ours["added_tokens"][0] | {"id": 260, "content": "я", "special": False})
    (student / "tokenizer.json").write_text(json.dumps(ours), encoding="utf-8")
    assert exact_ids(student, teacher).tolist()[FIRST_MARKER + 3] == -1


def aligned(tokens: list[int], ids: list[list[int]], student: list[int], teacher: list[int]) -> Aligned:
    rows = np.array(ids, np.int32)
    logprobs = np.where(rows < 0, -9999.0, -np.arange(1.0, rows.shape[1] + 1)).astype(np.float32)
    return Aligned(
        np.array(tokens, np.int32), (rows, logprobs), np.array(student, np.int32), np.array(teacher, np.int32)
    )


EXACT = np.array([10, 11, -1, 13, 11], np.int32)
"""Teacher ids 0, 1 and 3 say what 10, 11 and 13 say; 4 says what 1 says; 2 says what no student id says."""


def test_one_token_chunks_are_filled_and_all_others_are_absent() -> None:
    # Chunk 0: one to one. Chunk 1: two student tokens. Chunk 2: two teacher tokens.
    said = aligned([0, 1, 3, 0], [[0, 1, 3], [1, 0, 3], [3, 0, 1], [0, 1, 3]], [0, 1, 1, 2], [0, 1, 2, 2])
    ids, logprobs = projected(said, np.array([10, 11, 11, 13], np.int32), EXACT)
    assert ids.tolist() == [[10, 11, 13], [-1] * 3, [-1] * 3, [-1] * 3]
    assert logprobs.tolist() == [[-1.0, -2.0, -3.0], *[[-9999.0] * 3] * 3]


def test_row_is_absent_when_the_teacher_token_says_something_else_than_the_students() -> None:
    said = aligned([0], [[0, 1]], [0], [0])
    assert projected(said, np.array([11], np.int32), EXACT)[0].tolist() == [[-1, -1]]


def test_columns_that_no_student_id_says_are_absent_and_two_that_one_says_count_once() -> None:
    said = aligned([0], [[0, 2, 1, 4, -1]], [0], [0])
    ids, logprobs = projected(said, np.array([10], np.int32), EXACT)
    assert ids.tolist() == [[10, -1, 11, -1, -1]]
    assert logprobs.tolist() == [[-1.0, -9999.0, -3.0, -9999.0, -9999.0]]


def test_ids_beyond_the_tokenizer_are_absent() -> None:
    said = aligned([0], [[0, 99]], [0], [0])
    assert projected(said, np.array([10], np.int32), EXACT)[0].tolist() == [[10, -1]]

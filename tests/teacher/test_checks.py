"""What the arrays of an answer must be: each way of being wrong is refused with the row that it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher.checks import checked
from atroposlib.teacher.protocol import Question
from atroposlib.types import TeacherScores
from tests.support.reply_render import expected, random_truth

IDS = np.array([5, 1, 2, 3, 4], dtype=np.int32)
QUESTION = Question(IDS, k=3, start=2)


def scores() -> TeacherScores:
    """Row 0: standing token outside the top-k. Row 1: inside. Row 2: impossible."""
    ids = np.array([[2, 7, 8, 9], [3, 7, 8, -1], [-1, 7, 8, 9]], dtype=np.int32)
    probabilities = np.array([[0.1, 0.3, 0.2, 0.15], [0.2, 0.3, 0.1, 0.0], [0.0, 0.5, 0.2, 0.2]])
    with np.errstate(divide="ignore"):
        return TeacherScores(ids, np.log(probabilities).astype(np.float32), 2, "m")


def test_right_arrays_are_given_back() -> None:
    right = scores()
    assert checked(right, QUESTION) is right


def put(name: str, row: int, column: int, value: float) -> Callable[[TeacherScores], Any]:
    return lambda arrays: getattr(arrays, name).__setitem__((row, column), value)


def absent(row: int, column: int) -> Callable[[TeacherScores], Any]:
    def damage(arrays: TeacherScores) -> None:
        arrays.ids[row, column] = -1
        arrays.logprobs[row, column] = -np.inf

    return damage


@pytest.mark.parametrize(
    ("damage", "what", "row"),
    [
        (put("ids", 0, 0, 3), "not the token that stands", 0),
        (put("ids", 2, 0, 4), "-inf beside an id", 2),
        (put("ids", 0, 1, 8), "stands in a row twice", 0),
        (put("ids", 1, 2, -2), "an id is negative", 1),
        (put("ids", 0, 2, -1), "finite beside none", 0),
        (put("logprobs", 2, 2, np.nan), "NaN or above 0", 2),
        (put("logprobs", 0, 0, 0.01), "NaN or above 0", 0),
        (put("logprobs", 0, 0, np.inf), "NaN or above 0", 0),
        (put("logprobs", 0, 1, -np.inf), "-inf beside an id", 0),
        (put("logprobs", 1, 1, np.log(0.75)), "exceed 1", 1),
        (put("logprobs", 2, 1, np.log(0.15)), "do not fall", 2),
        (put("logprobs", 0, 0, np.log(0.16)), "likelier than the last inside", 0),
        (absent(0, 1), "do not fall", 0),
        (absent(1, 2), "fewer than 3", 1),
        (absent(2, 3), "fewer than 3", 2),
    ],
)
def test_a_wrong_row_is_refused_by_name(damage: Callable[[TeacherScores], Any], what: str, row: int) -> None:
    arrays = scores()
    damage(arrays)
    with pytest.raises(TeacherError, match=what) as caught:
        checked(arrays, QUESTION)
    assert caught.value.code == "teacher.bad_reply"
    assert caught.value.where == f"rows[{row}]"


@pytest.mark.parametrize(
    "fields",
    [
        {"start": 1},
        {"ids": scores().ids[:2]},
        {"ids": scores().ids[:, :3]},
        {"ids": scores().ids.astype(np.int64)},
        {"logprobs": scores().logprobs[1:]},
        {"logprobs": scores().logprobs.astype(np.float64)},
        {"ids": scores().ids.ravel()},
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TeacherError):
        checked(replace(scores(), **fields), QUESTION)


def test_a_row_of_a_small_vocabulary_may_be_short_when_it_holds_all_probability() -> None:
    ids = np.array([[1, 0, -1, -1]], dtype=np.int32)
    for rest, right in ((0.5, True), (0.4, False)):
        logprobs = np.array([[np.log(0.5), np.log(rest), -np.inf, -np.inf]], dtype=np.float32)
        arrays = TeacherScores(ids, logprobs, 1, "m")
        question = Question(np.array([0, 1], dtype=np.int32), 3)
        if right:
            checked(arrays, question)
            continue
        with pytest.raises(TeacherError, match="fewer than 3"):
            checked(arrays, question)


def test_numbers_that_are_no_logprobs_are_refused_although_they_are_negative() -> None:
    ids = np.array([[1, 3, 4]], dtype=np.int32)
    arrays = TeacherScores(ids, np.array([[-40.0, -20.0, -21.0]], dtype=np.float32), 1, "m")
    with pytest.raises(TeacherError, match="logprobs-mode"):
        checked(arrays, Question(np.array([0, 1], dtype=np.int32), 2))


def test_no_rows_are_right_where_nothing_was_asked() -> None:
    nothing = np.zeros((0, 4), dtype=np.int32)
    checked(TeacherScores(nothing, nothing.astype(np.float32), 5, "m"), replace(QUESTION, start=5))


@pytest.mark.parametrize("seed", range(20))
def test_what_float16_rounds_is_no_fault(seed: int) -> None:
    """Flat rows, where rounding adds up, and standing tokens that equal the last of the top-k."""
    generator = np.random.default_rng(seed)
    vocabulary, k = 400, 200
    truth = random_truth(generator, 12, vocabulary)
    truth[6:] = -np.log(np.float32(vocabulary)) + generator.normal(scale=1e-4, size=(6, vocabulary))
    truth -= np.log(np.exp(truth).sum(axis=1, keepdims=True))
    ids = np.array([np.argsort(-row)[k] for row in truth], dtype=np.int32)
    question = Question(ids, k, dtype="float16")
    arrays = expected(truth, question)
    arrays.logprobs[:, 1:] = arrays.logprobs[:, 1:].astype(np.float16)
    checked(arrays, question)


EXTRA = np.array([[2, 6], [-1, 6], [4, -1]], dtype=np.int32)
NAN = np.nan


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ([[np.log(0.1), -3.0], [NAN, -2.5], [-5.0, NAN]], None),
        ([[NAN, -np.inf], [NAN, -2.5], [NAN, NAN]], None),
        ([[np.log(0.2), -3.0], [NAN, -2.5], [-5.0, NAN]], "same token in its row"),
        ([[NAN, -1.0], [NAN, -2.5], [NAN, NAN]], "likelier than the last inside"),
        ([[NAN, -3.0], [NAN, -1.5], [NAN, NAN]], "likelier than the last inside"),
        ([[NAN, 0.5], [NAN, -2.5], [-5.0, NAN]], "above 0"),
        ([[NAN, -3.0], [-1.0, -2.5], [-5.0, NAN]], "no id was named"),
        ([[NAN, -3.0], [NAN, -2.5]], "another shape"),
    ],
)
def test_logprobs_of_named_ids(extra: list[list[float]], what: str | None) -> None:
    arrays = replace(scores(), extra_logprobs=np.array(extra, dtype=np.float32))
    asked = replace(QUESTION, extra_ids=EXTRA)
    if what is None:
        checked(arrays, asked)
        return
    with pytest.raises(TeacherError, match=what):
        checked(arrays, asked)


def test_the_logprob_of_a_named_id_is_that_of_the_same_token_among_the_top_k() -> None:
    asked = replace(QUESTION, extra_ids=np.array([[8], [7], [9]], dtype=np.int32))
    for shift, right in ((0.1, True), (-1.0, False)):
        extra = np.log(np.array([[0.2], [0.3], [0.2]], dtype=np.float32))
        extra[1] += shift
        arrays = replace(scores(), extra_logprobs=extra)
        if right:
            checked(arrays, asked)
            continue
        with pytest.raises(TeacherError, match="same token in its row") as caught:
            checked(arrays, asked)
        assert caught.value.where == "rows[1]"


def test_logprobs_of_ids_that_nobody_named_are_refused() -> None:
    with pytest.raises(TeacherError, match="nobody named"):
        checked(replace(scores(), extra_logprobs=np.zeros((3, 1), dtype=np.float32)), QUESTION)

"""Requests and answers as bytes come back as they were, and broken ones are refused whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atroposlib.errors import TeacherError, WireError
from atroposlib.teacher.binary import (
    MAX_SEQUENCES,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    selected_first,
)
from atroposlib.teacher.protocol import LogprobDtype, Question
from atroposlib.wire import container
from tests.support.questions import answer, columns, question
from tests.support.vllm_render import fake_logprobs

FORMAT = "atropos-scores"
SEVERAL = [question(9, 3, 4, seed=1), question(2, 3, 1, seed=2), question(30, 3, 29, seed=3)]
WITH_EXTRA = [question(9, 3, 4, extra=2, seed=1), question(12, 3, 1, extra=2, seed=2)]

Arrays = dict[str, Any]


def changed(body: bytes, change: Callable[[Arrays], object]) -> bytes:
    """The frame with its arrays changed."""
    arrays: Arrays = {name: array.copy() for name, array in container.read(body, kind=FORMAT).items()}
    change(arrays)
    return container.write(arrays, "none", FORMAT)


def facts(text: str) -> Callable[[Arrays], None]:
    """Sets the facts of a frame."""
    return lambda arrays: arrays.update(facts=np.frombuffer(text.encode(), np.uint8))


def assert_same(ours: Question, theirs: Question) -> None:
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    assert (ours.k, ours.start, ours.dtype) == (theirs.k, theirs.start, theirs.dtype)
    if theirs.extra_ids is None:
        assert ours.extra_ids is None
    else:
        np.testing.assert_array_equal(ours.extra_ids, theirs.extra_ids)


@pytest.mark.parametrize("model", ["some/model", None])
@pytest.mark.parametrize("questions", [SEVERAL, WITH_EXTRA, [question(2, 0, dtype="float16")]])
def test_questions_come_back_as_they_were(questions: list[Question], model: str | None) -> None:
    read, name = decode_request(encode_request(questions, model))
    assert name == model
    assert len(read) == len(questions)
    for ours, theirs in zip(read, questions, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda a: a["starts"].__setitem__(0, 0), "starts"),
        (lambda a: a["starts"].__setitem__(1, 2), "starts"),
        (lambda a: a["lengths"].__setitem__(0, -9), "starts"),
        (lambda a: a["lengths"].__setitem__(0, 10), "ids"),
        (lambda a: a["ids"].__setitem__(5, -1), "ids"),
        (lambda a: a.update(ids=a["ids"].astype(np.float32)), "ids"),
        (lambda a: a.update(ids=a["ids"][:, None]), "ids"),
        (lambda a: a.update(starts=a["starts"][:2]), "starts"),
        (lambda a: a.update(starts=a["starts"][:0], lengths=a["lengths"][:0]), "lengths"),
        (lambda a: a.update(extra_ids=np.zeros((3, 2), np.int32)), "extra_ids"),
        (lambda a: a.update(extra_ids=np.full((7, 1), -2, np.int32)), "extra_ids"),
        (lambda a: a.update(extra_ids=np.zeros((7, 0), np.int32)), "extra_ids"),
        (lambda a: a.update(more=np.zeros(1, np.int32)), "more"),
        (lambda a: a.pop("lengths"), "lengths"),
        (lambda a: a.pop("facts"), "facts"),
        (facts('{"k": 3, "dtype": "float32"'), "facts"),
        (facts("[]"), "facts"),
        (facts('{"k": -1, "dtype": "float32"}'), "k"),
        (facts('{"k": true, "dtype": "float32"}'), "k"),
        (facts('{"k": 1e3, "dtype": "float32"}'), "k"),
        (facts('{"k": 3, "dtype": "float64"}'), "dtype"),
        (facts('{"k": 3, "dtype": ["float32"]}'), "dtype"),
        (facts('{"k": 3, "dtype": "float32", "model": 7}'), "model"),
    ],
)
def test_broken_request_is_refused_by_the_part_to_blame(change: Callable[[Arrays], Any], where: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_request(changed(encode_request(SEVERAL, None), change))
    assert caught.value.where == where


def test_more_sequences_than_one_request_may_have_are_refused() -> None:
    one = question(2, 0)
    assert len(decode_request(encode_request([one] * MAX_SEQUENCES, None))[0]) == MAX_SEQUENCES
    with pytest.raises(WireError, match="number of sequences"):
        decode_request(encode_request([one] * (MAX_SEQUENCES + 1), None))


def test_frames_of_groups_and_of_scores_are_not_taken_for_each_other() -> None:
    with pytest.raises(WireError, match="another format"):
        decode_request(container.write({"lengths": np.ones(1, np.int32)}, "none"))
    with pytest.raises(WireError, match="another format"):
        container.read(encode_request(SEVERAL, None))


@pytest.mark.parametrize("k", [0, 1, 3, 49, 50, 60])
@pytest.mark.parametrize("extra", [0, 2])
def test_scores_come_back_bit_for_bit_in_float32(k: int, extra: int) -> None:
    questions = [question(9, k, 4, extra=extra, seed=1), question(12, k, 1, extra=extra, seed=2)]
    scores = [answer(one) for one in questions]
    read = decode_answer(encode_answer(scores, "float32"), questions)
    for ours, theirs in zip(read, scores, strict=True):
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.logprobs, theirs.logprobs)
        assert ours.logprobs.dtype == np.float32
        assert (ours.start, ours.model, ours.server) == (theirs.start, "fake", "fake 1")
        if extra:
            np.testing.assert_array_equal(ours.extra_logprobs, theirs.extra_logprobs)
        else:
            assert ours.extra_logprobs is None


def test_float16_keeps_the_standing_token_exact_and_the_rest_to_half_a_thousandth() -> None:
    asked = question(200, 16, 3, dtype="float16", seed=5)
    right = answer(asked)
    (read,) = decode_answer(encode_answer([right], "float16"), [asked])
    np.testing.assert_array_equal(read.ids, right.ids)
    np.testing.assert_array_equal(read.logprobs[:, 0], right.logprobs[:, 0])
    present = right.ids[:, 1:] >= 0
    exact = right.logprobs[:, 1:][present]
    error = np.abs(read.logprobs[:, 1:][present] - exact)
    assert error.max() > 0
    assert (error <= 5e-4 * np.abs(exact)).all()


@pytest.mark.parametrize(("dtype", "most"), [("float16", 6.5), ("float32", 8.5)])
@pytest.mark.parametrize("k", [8, 32, 128])
def test_bytes_for_each_candidate(k: int, dtype: LogprobDtype, most: float) -> None:
    asked = question(256, k, dtype=dtype, vocabulary=1000)
    body = encode_answer([answer(asked, vocabulary=1000)], dtype)
    assert len(body) / (255 * (k + 1)) <= most


class Parts:
    """An answer's head and arrays, to be changed; read by the page's description, not by our decoder."""

    def __init__(self, body: bytes) -> None:
        length = int.from_bytes(body[:4], "little")
        self.head: dict[str, Any] = json.loads(body[4 : 4 + length])
        rows, columns, extra = sum(self.head["rows"]), self.head["columns"], self.head["extra"]
        data = np.frombuffer(body[4 + length :], "<i4")
        ends = np.cumsum([rows * columns, rows, rows * extra]).tolist()
        ids, selected, named, logprobs = np.split(data, ends)
        self.ids = ids.reshape(rows, columns).copy()
        self.selected = selected.view("<f4").copy()
        self.named = named.view("<f4").reshape(rows, extra).copy()
        self.logprobs = logprobs.view("<f4").reshape(rows, columns - 1).copy()

    def body(self) -> bytes:
        """The bytes of these parts."""
        text = json.dumps(self.head).encode()
        arrays = (self.ids, self.selected, self.named, self.logprobs)
        return len(text).to_bytes(4, "little") + text + b"".join(array.tobytes() for array in arrays)


CHANGES: dict[str, Callable[[Parts], Any]] = {
    "rows of a sequence": lambda parts: parts.head["rows"].__setitem__(slice(0, 2), [6, 9]),
    "fewer sequences": lambda parts: parts.head["rows"].pop(),
    "rows in the head alone": lambda parts: parts.head.update(rows=[5, 11]),
    "columns in the head alone": lambda parts: parts.head.update(columns=3),
    "no columns": lambda parts: parts.head.update(columns=0),
    "negative columns": lambda parts: parts.head.update(columns=-4),
    "extra columns in the head alone": lambda parts: parts.head.update(extra=1),
    "another dtype": lambda parts: parts.head.update(dtype="float16"),
    "an unknown dtype": lambda parts: parts.head.update(dtype="float64"),
    "an unknown member": lambda parts: parts.head.update(more=1),
    "no model": lambda parts: parts.head.pop("model"),
    "a row less": lambda parts: setattr(parts, "logprobs", parts.logprobs[:-1]),
    "a row more": lambda parts: setattr(parts, "ids", np.concatenate([parts.ids, parts.ids[:1]])),
    "rows reversed": lambda parts: setattr(parts, "ids", parts.ids[::-1]),
    "another standing token": lambda parts: parts.ids.__setitem__((2, 0), 49 - parts.ids[2, 0]),
    "an id twice": lambda parts: parts.ids.__setitem__((2, 1), parts.ids[2, 2]),
    "NaN of the standing token": lambda parts: parts.selected.__setitem__(3, np.nan),
    "NaN in the top-k": lambda parts: parts.logprobs.__setitem__((3, 0), np.nan),
    "above zero": lambda parts: parts.logprobs.__setitem__((3, 0), 0.5),
    "out of order": lambda parts: parts.logprobs.__setitem__(3, parts.logprobs[3, ::-1].copy()),
    "a named id above zero": lambda parts: parts.named.__setitem__((0, 0), 0.5),
    "no logprobs of named ids": lambda parts: setattr(parts, "named", parts.named[:, :0]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_answer_that_is_not_the_one_asked_for_is_refused(name: str) -> None:
    asked = [question(9, 3, 4, extra=2, seed=1), question(12, 3, 2, extra=2, seed=2)]
    parts = Parts(encode_answer([answer(one) for one in asked], "float32"))
    decode_answer(parts.body(), asked)
    CHANGES[name](parts)
    with pytest.raises(TeacherError) as caught:
        decode_answer(parts.body(), asked)
    assert caught.value.code == "teacher.bad_reply"


@pytest.mark.parametrize("head", [b"", b"nothing", b"[]", b"\xff", b'{"model": 1}'])
def test_answer_without_a_head_is_refused(head: bytes) -> None:
    with pytest.raises(TeacherError, match="its head is none"):
        decode_answer(len(head).to_bytes(4, "little") + head, SEVERAL)


@pytest.mark.parametrize("stop", [0, 7, 100, -1])
def test_answer_that_is_cut_off_is_refused(stop: int) -> None:
    body = encode_answer([answer(one) for one in SEVERAL], "float32")
    with pytest.raises(TeacherError, match="binary answer is broken"):
        decode_answer(body[:stop], SEVERAL)


def test_answer_to_another_sequence_is_refused() -> None:
    other = replace(SEVERAL[0], ids=SEVERAL[0].ids[::-1].copy())
    with pytest.raises(TeacherError, match="token that stands"):
        decode_answer(encode_answer([answer(SEVERAL[0])], "float32"), [other])


@pytest.mark.parametrize(("k", "vocabulary"), [(0, 50), (1, 50), (7, 50), (50, 50), (60, 50), (2, 2)])
def test_columns_are_those_of_one_row_after_the_other(k: int, vocabulary: int) -> None:
    tokens = np.random.default_rng(k).integers(vocabulary, size=40)
    table = fake_logprobs(tokens.tolist(), vocabulary, seed=k)
    table[::3, vocabulary // 2] = -np.inf
    width = min(k, vocabulary)
    best = np.argsort(-table, axis=1, kind="stable")[:, :width]
    ids = np.concatenate([tokens[:, None], best], axis=1)
    got_ids, got = selected_first(ids, np.take_along_axis(table, ids, axis=1), k)
    for row, token in enumerate(tokens.tolist()):
        right = columns(table[row], token, k)
        finite = [(i if value > -np.inf else -1, value) for i, value in right]
        assert list(zip(got_ids[row].tolist(), got[row].tolist(), strict=True)) == finite
    assert (got_ids.dtype, got.dtype) == (np.int32, np.float32)


def test_vllms_minus_9999_is_absent() -> None:
    ids, logprobs = selected_first(np.array([[4, 5, 6]]), np.array([[-9999.0, -0.1, -9999.0]]), 2)
    assert ids.tolist() == [[-1, 5, -1]]
    assert logprobs.tolist() == [[-np.inf, pytest.approx(-0.1), -np.inf]]


def test_scores_do_not_keep_the_answer_in_memory() -> None:
    (scores,) = decode_answer(encode_answer([answer(WITH_EXTRA[0])], "float32"), WITH_EXTRA[:1])
    assert scores.extra_logprobs is not None
    for array in (scores.ids, scores.logprobs, scores.extra_logprobs):
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert array.base is None

"""Every route reads what its servers send: the same arrays from every form of one truth."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher import completions, echo, generate, sglang
from atroposlib.teacher.protocol import Question
from atroposlib.types import TeacherScores
from tests.support import reply_render
from tests.support.recorded import recordings
from tests.support.reply_render import RENDERERS, body_of, expected, random_truth
from tests.support.vllm_cases import IDS

READERS: dict[str, Callable[[bytes, Question], TeacherScores]] = {
    "completions": completions.read,
    "generate": generate.read,
    "echo": echo.read,
    **{name: sglang.read for name in RENDERERS if name.startswith("sglang")},
}


def question(k: int, start: int = 1, length: int = 9, vocabulary: int = 30, seed: int = 0) -> Question:
    ids = np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
    return Question(ids, k, start)


@pytest.mark.parametrize("start", [1, 4, 8])
@pytest.mark.parametrize("k", [0, 1, 5, 29])
@pytest.mark.parametrize("form", RENDERERS)
def test_every_form_gives_the_same_arrays(form: str, k: int, start: int) -> None:
    asked = question(k, start)
    truth = random_truth(np.random.default_rng(1), 9, 30)
    scores = READERS[form](body_of(RENDERERS[form](truth, asked)), asked)
    wanted = expected(truth, asked)
    assert np.array_equal(scores.ids, wanted.ids)
    assert np.array_equal(scores.logprobs, wanted.logprobs)
    assert scores.ids.dtype == np.int32
    assert scores.logprobs.dtype == np.float32
    assert scores.start == start


@pytest.mark.parametrize("form", ["completions", "generate", "echo"])
def test_the_reply_names_its_model(form: str) -> None:
    asked = question(2)
    truth = random_truth(np.random.default_rng(1), 9, 30)
    assert READERS[form](body_of(RENDERERS[form](truth, asked)), asked).model == "truth"


@pytest.mark.parametrize("form", ["completions", "generate", "echo"])
def test_a_vocabulary_smaller_than_k_leaves_columns_absent(form: str) -> None:
    asked = question(9, vocabulary=6)
    truth = random_truth(np.random.default_rng(1), 9, 6)
    scores = READERS[form](body_of(RENDERERS[form](truth, asked)), asked)
    wanted = expected(truth, asked)
    assert np.array_equal(scores.ids, wanted.ids)
    assert (scores.ids[:, 6:] == -1).all()


@pytest.mark.parametrize(("name", "k"), [("echo_only_token_ids", 1)])
def test_echoed_ids_of_a_real_vllm_equal_its_prompt_logprobs(name: str, k: int) -> None:
    body = body_of(recordings("completions")[name]["body"])
    asked = Question(np.asarray(IDS, dtype=np.int32), k)
    by_echo, by_rows = echo.read(body, asked), completions.read(body, asked)
    assert np.array_equal(by_echo.ids, by_rows.ids)
    assert np.array_equal(by_echo.logprobs, by_rows.logprobs)


@pytest.mark.parametrize("name", ["echo_only", "echo_logprobs", "echo_token_ids"])
def test_echoed_texts_of_a_real_vllm_are_refused(name: str) -> None:
    body = body_of(recordings("completions")[name]["body"])
    with pytest.raises(TeacherError, match="by text"):
        echo.read(body, Question(np.asarray(IDS, dtype=np.int32), 2))


def named_question() -> Question:
    extra = np.array([[3, -1, 7], [3, 9, 9], [-1, -1, -1], [12, 0, 3]], dtype=np.int32)
    return replace(question(3, start=5), extra_ids=extra)


def test_sglang_scores_the_named_ids_of_each_row() -> None:
    asked = named_question()
    truth = random_truth(np.random.default_rng(1), 9, 30)
    extra = sglang.read(body_of(reply_render.sglang(truth, asked)), asked).extra_logprobs
    assert extra is not None
    assert asked.extra_ids is not None
    for row, named in enumerate(asked.extra_ids.tolist()):
        for column, one in enumerate(named):
            assert np.isnan(extra[row, column]) if one < 0 else extra[row, column] == truth[5 + row, one]


def named_reply(encode: Callable[[np.ndarray], bytes]) -> tuple[bytes, Question, np.ndarray]:
    """A reply of ``generate``, what it answers, and the logprobs of the named ids that it encodes."""
    asked = named_question()
    assert asked.extra_ids is not None
    truth = random_truth(np.random.default_rng(1), 9, 30)
    array = np.take_along_axis(truth[5:], np.maximum(asked.extra_ids, 0), axis=1)
    array[asked.extra_ids < 0] = -np.inf
    encoded = base64.b64encode(encode(array)).decode()
    reply = {**reply_render.generate(truth, asked), "prompt_token_id_logprobs": encoded}
    return body_of(reply), asked, array


def saved(array: np.ndarray) -> bytes:
    with io.BytesIO() as file:
        np.save(file, array)
        return file.getvalue()


def zipped(array: np.ndarray) -> bytes:
    with io.BytesIO() as file:
        np.savez(file, array)
        return file.getvalue()


@pytest.mark.parametrize(
    "encode",
    [
        zipped,
        lambda array: saved(array[1:]),
        lambda array: saved(np.asfortranarray(array)),
        lambda array: saved(array.astype(np.float64)),
        lambda array: saved(array.astype(">f4")),
        lambda array: saved(array)[:-1],
        lambda array: saved(array) + b"0000",
        lambda array: saved(array).replace(b"(4, 3), ", b"(4, 3000000000000), "),
        lambda array: b"",
        lambda array: b"no array",
        lambda array: saved(np.where(np.isinf(array), array, np.float32(np.nan))),
    ],
)
def test_named_ids_that_cannot_be_read_are_refused(encode: Callable[[np.ndarray], bytes]) -> None:
    body, asked, _ = named_reply(encode)
    with pytest.raises(TeacherError) as caught:
        generate.read(body, asked)
    assert caught.value.code == "teacher.bad_reply"


def test_generate_scores_the_named_ids_of_each_row() -> None:
    body, asked, array = named_reply(saved)
    extra = generate.read(body, asked).extra_logprobs
    assert asked.extra_ids is not None
    assert extra is not None
    assert np.array_equal(np.isnan(extra), asked.extra_ids < 0)
    assert np.array_equal(extra[asked.extra_ids >= 0], array[asked.extra_ids >= 0])


def test_named_ids_that_are_not_scored_are_refused() -> None:
    asked = named_question()
    truth = random_truth(np.random.default_rng(1), 9, 30)
    without = replace(asked, extra_ids=None)
    with pytest.raises(TeacherError, match="lacks"):
        generate.read(body_of(reply_render.generate(truth, without)), asked)
    with pytest.raises(TeacherError, match="lacks"):
        sglang.read(body_of(reply_render.sglang(truth, without)), asked)


@pytest.mark.parametrize("value", [1e300, 0.5, "NaN"])
def test_a_named_id_without_a_logprob_is_refused_in_sglangs_reply(value: object) -> None:
    asked = named_question()
    reply = reply_render.sglang(random_truth(np.random.default_rng(1), 9, 30), asked)
    reply["meta_info"]["input_token_ids_logprobs"][1][1][0] = value
    with pytest.raises(TeacherError) as caught:
        sglang.read(body_of(reply), asked)
    assert caught.value.code == "teacher.bad_reply"


@pytest.mark.parametrize("form", ["completions", "generate"])
@pytest.mark.parametrize("colon", [":", " :", "\n :"])
def test_a_member_that_stands_twice_is_seen_however_the_json_is_spaced(form: str, colon: str) -> None:
    asked = question(2)
    text = body_of(RENDERERS[form](random_truth(np.random.default_rng(1), 9, 30), asked)).decode()
    text = text.replace('"logprob":', f'"logprob"{colon}')
    READERS[form](text.encode(), asked)
    twice = text.replace(f'"logprob"{colon}', f'"logprob"{colon}-9.5,"logprob"{colon}', 1)
    with pytest.raises(TeacherError, match="twice"):
        READERS[form](twice.encode(), asked)


@pytest.mark.parametrize("form", ["completions", "generate", "echo"])
def test_rows_that_are_cut_off_are_not_kept_in_memory(form: str) -> None:
    asked = question(5, start=8)
    scores = READERS[form](
        body_of(RENDERERS[form](random_truth(np.random.default_rng(1), 9, 30), asked)), asked
    )
    for array in (scores.ids, scores.logprobs):
        assert array.base is None
        assert array.shape == (1, 6)


@pytest.mark.parametrize(
    "damage",
    [
        lambda meta: meta.update(input_top_logprobs_shape=[8, 5]),
        lambda meta: meta.update(input_top_logprobs_shape=None),
        lambda meta: meta.update(input_top_logprobs_null_prefix=0),
        lambda meta: meta.update(input_top_logprobs_null_prefix=2),
        lambda meta: meta.update(input_top_logprobs_val_flat_b64_dtype="float64"),
        lambda meta: meta.update(input_top_logprobs_val_flat_b64_dtype="float16"),
        lambda meta: meta.update(input_top_logprobs_idx_flat_b64_dtype="int16"),
        lambda meta: meta.update(input_top_logprobs_val_flat_b64="AAA"),
        lambda meta: meta.update(input_top_logprobs_idx_flat_b64=None),
        lambda meta: meta.update(input_top_logprobs=[]),
        lambda meta: meta["input_token_logprobs"].pop(),
        lambda meta: meta["input_token_logprobs"].pop(0),
        lambda meta: meta["input_token_logprobs"][3].__setitem__(1, 31),
        lambda meta: meta["input_token_logprobs"][3].__setitem__(0, None),
        lambda meta: meta["input_token_logprobs"][0].__setitem__(0, -1.0),
    ],
)
def test_a_damaged_sglang_reply_is_refused(damage: Callable[[dict[str, object]], None]) -> None:
    asked = question(4)
    reply = reply_render.sglang(random_truth(np.random.default_rng(1), 9, 30), asked)
    damage(reply["meta_info"])
    with pytest.raises(TeacherError) as caught:
        sglang.read(body_of(reply), asked)
    assert caught.value.code == "teacher.bad_reply"


@pytest.mark.parametrize("form", RENDERERS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"null",
        b'{"choices": []}',
        b'{"choices": [{}, {}]}',
        b"\xff\xfe",
        b'{"x": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_reply_at_all_is_refused(form: str, body: bytes) -> None:
    with pytest.raises(TeacherError) as caught:
        READERS[form](body, question(2))
    assert caught.value.code == "teacher.bad_reply"

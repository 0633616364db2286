"""The binary scores: exact beside others in one batch, and no work for rows that nobody asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from atroposlib.modelserver.work import Job
from atroposlib.teacher.binary import (
    CAPABILITIES_PATH,
    SCORES_PATH,
    SCORES_TYPE,
    decode_answer,
    encode_request,
)
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.tokenizer_files import TOKENIZER_PATH
from atroposlib.types import TeacherScores
from tests.modelserver.conftest import Served, serving
from tests.support.oracle import Oracle, float64_oracle
from tests.support.questions import question

TOLERANCE = 3e-4
VOCABULARY = 300


@pytest.fixture(scope="module")
def oracle(tiny_model_dir: Path) -> Oracle:
    return float64_oracle(tiny_model_dir)


async def post(server: Served, *questions: Question, model: str | None = None) -> httpx.Response:
    body = encode_request(questions, model)
    return await server.client.post(SCORES_PATH, content=body, headers={"content-type": SCORES_TYPE})


async def scores(server: Served, *questions: Question) -> list[TeacherScores]:
    reply = await post(server, *questions)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == SCORES_TYPE
    return decode_answer(reply.content, questions)


def error_of(reply: httpx.Response) -> tuple[int, str, str | None]:
    error = reply.json()["error"]
    assert error["code"] == reply.status_code
    return reply.status_code, error["type"], error["param"]


def assert_exact(got: TeacherScores, asked: Question, oracle: Oracle) -> None:
    """Every value is that of a float64 pass for its id; named ids too."""
    table = oracle(asked.ids.tolist())[asked.start - 1 : -1]
    truth = np.where(got.ids < 0, -np.inf, np.take_along_axis(table, got.ids.clip(0), axis=1))
    np.testing.assert_allclose(got.logprobs, truth, atol=TOLERANCE)
    if asked.extra_ids is not None:
        named = np.take_along_axis(table, asked.extra_ids.clip(0), axis=1)
        expected = np.where(asked.extra_ids < 0, np.nan, named)
        np.testing.assert_allclose(got.extra_logprobs, expected, atol=TOLERANCE)


async def test_sequences_of_one_request_are_each_exact(tiny: Served, oracle: Oracle) -> None:
    asked = [
        question(40, 6, 1, extra=3, seed=1, vocabulary=VOCABULARY),
        question(7, 6, 6, extra=3, seed=2, vocabulary=VOCABULARY),
        question(90, 6, 50, extra=3, seed=3, vocabulary=VOCABULARY),
    ]
    for got, one in zip(await scores(tiny, *asked), asked, strict=True):
        assert_exact(got, one, oracle)


async def test_requests_that_share_a_batch_get_their_own_columns(
    tiny: Served, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other top-k, other named ids, other starts, a JSON request between them: one forward pass."""
    passes = passes_of(tiny, monkeypatch)
    asked = [
        question(30, 0, 5, seed=1, vocabulary=VOCABULARY),
        question(20, 9, 1, extra=1, seed=2, vocabulary=VOCABULARY),
        question(25, 2, 24, extra=4, seed=3, vocabulary=VOCABULARY),
    ]
    arrived = arrival(tiny, monkeypatch, 4)
    await tiny.client.post("/pause?mode=keep")
    together = asyncio.gather(
        *(scores(tiny, one) for one in asked),
        tiny.complete(asked[0].ids.tolist(), prompt_logprobs=3, max_tokens=1),
    )
    await arrived.wait()
    await tiny.client.post("/resume")
    answers = await together
    assert passes == [4]
    for (got,), one in zip(answers[:3], asked, strict=True):
        assert got.ids.shape == (len(one.ids) - one.start, one.k + 1)
        assert_exact(got, one, oracle)


def arrival(server: Served, monkeypatch: pytest.MonkeyPatch, count: int) -> asyncio.Event:
    """Set when the worker has been given this many prompts from now on."""
    honest, came, arrived = server.model.scheduler.submit, [], asyncio.Event()

    def submit(job: Job) -> None:
        honest(job)
        came.append(job)
        if len(came) == count:
            arrived.set()

    monkeypatch.setattr(server.model.scheduler, "submit", submit)
    return arrived


def passes_of(server: Served, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences of every forward pass of prompts from now on."""
    honest = server.engine.prefill
    passes: list[int] = []

    def counted(sequences: Any) -> Any:
        passes.append(len(sequences))
        return honest(sequences)

    monkeypatch.setattr(server.engine, "prefill", counted)
    return passes


async def test_tokenizer_is_what_the_model_was_loaded_with(tiny: Served, tiny_model_dir: Path) -> None:
    reply = await tiny.client.get(TOKENIZER_PATH)
    assert reply.status_code == 200
    files = reply.json()
    assert files["tokenizer"] == (tiny_model_dir / "tokenizer.json").read_text("utf-8")
    assert files["config"] == (tiny_model_dir / "tokenizer_config.json").read_text("utf-8")


async def test_rows_before_the_start_do_not_pass_the_head(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, rows = tiny.engine.logits, []

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return honest(hidden)

    monkeypatch.setattr(tiny.engine, "logits", counted)
    await scores(tiny, question(100, 5, 96, vocabulary=VOCABULARY))
    # Four scored positions, and the last one, from which a token is sampled.
    assert sum(rows) == 4 + 1


async def test_bytes_and_json_give_the_same_numbers(tiny: Served) -> None:
    asked = question(24, 5, 1, seed=4, vocabulary=VOCABULARY)
    (got,) = await scores(tiny, asked)
    (choice,) = await tiny.complete(asked.ids.tolist(), prompt_logprobs=5, max_tokens=1)
    for row, ids, logprobs in zip(choice["prompt_logprobs"][1:], got.ids, got.logprobs, strict=True):
        told = {int(key): np.float32(member["logprob"]) for key, member in row.items()}
        assert told == {int(i): value for i, value in zip(ids, logprobs, strict=True) if i >= 0}


async def test_top_k_beyond_the_vocabulary_is_all_of_it(tiny_model_dir: Path) -> None:
    asked = question(5, 310, 2, vocabulary=VOCABULARY)
    async with serving(tiny_model_dir, max_logprobs=400) as server:
        (got,) = await scores(server, asked)
    assert got.ids.shape == (3, 311)
    assert ((got.ids >= 0).sum(axis=1) == VOCABULARY).all()
    np.testing.assert_allclose(np.exp(got.logprobs).sum(axis=1), 1, atol=1e-4)


async def test_capabilities_are_the_limits(tiny: Served) -> None:
    reply = await tiny.client.get(CAPABILITIES_PATH)
    facts = reply.json()
    assert facts.pop("server").startswith("atropos ")
    model = tiny.model
    assert facts == {
        "model": model.name,
        "max_model_len": model.max_model_len,
        "max_k": model.max_logprobs,
        "vocab_size": VOCABULARY,
        "extra_ids": True,
        "protocol": 1,
    }


@pytest.mark.parametrize(
    ("asked", "model", "expected"),
    [
        (question(5, 100_000), None, (400, "BadRequestError", "prompt_logprobs")),
        (question(512, 1), None, (400, "BadRequestError", "input_tokens")),
        (Question(np.array([1, VOCABULARY], np.int32), 1), None, (400, "BadRequestError", None)),
        (question(5, 1), "nobody", (404, "NotFoundError", "model")),
    ],
    ids=["top_k", "too_long", "vocabulary", "model"],
)
async def test_refusal_has_vllms_shape(
    tiny: Served, asked: Question, model: str | None, expected: tuple[int, str, str | None]
) -> None:
    assert error_of(await post(tiny, asked, model=model)) == expected


async def test_not_a_number_is_a_failure_of_its_own_request(tiny: Served) -> None:
    embedding = tiny.engine.model.get_input_embeddings().weight
    kept = embedding[77].clone()
    embedding[77] = float("nan")
    bad = await post(tiny, Question(np.array([5, 77, 6], np.int32), 1))
    assert error_of(bad) == (500, "InternalServerError", None)
    embedding[77] = kept
    assert (await post(tiny, Question(np.array([5, 77, 6], np.int32), 1))).status_code == 200


async def test_paused_server_answers_when_it_goes_on(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = arrival(tiny, monkeypatch, 1)
    await tiny.client.post("/pause?mode=keep")
    asked = question(9, 2, vocabulary=VOCABULARY)
    waiting = asyncio.create_task(post(tiny, asked))
    await arrived.wait()
    assert not waiting.done()
    await tiny.client.post("/resume")
    decode_answer((await waiting).content, [asked])


async def test_request_that_is_cancelled_leaves_the_queue(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled: list[Job] = []
    arrived = arrival(tiny, monkeypatch, 2)
    monkeypatch.setattr(tiny.model.scheduler, "cancel", cancelled.append)
    await tiny.client.post("/pause?mode=keep")
    waiting = asyncio.create_task(post(tiny, question(9, 2), question(7, 2)))
    await arrived.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [len(job.prompt_ids) for job in cancelled] == [9, 7]

"""The plugin in a vLLM: right scores, failures of vLLM's shape, and nothing left running in the engine."""

from __future__ import annotations

import asyncio
import tomllib
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from atroposlib.teacher import serving
from atroposlib.teacher.binary import (
    CAPABILITIES_PATH,
    SCORES_PATH,
    SCORES_TYPE,
    decode_answer,
    encode_request,
)
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.tokenizer_files import TOKENIZER_PATH
from tests.support.questions import answer, question
from tests.support.stub_vllm import VOCABULARY, Engine, Flat, installed
from tests.support.tiny import write_tokenizer

SEVERAL = [question(9, 4, 3, seed=1), question(2, 4, seed=2), question(30, 4, 29, seed=3)]


@pytest.fixture(scope="module")
def plugin() -> Iterator[ModuleType]:
    with installed() as module:
        yield module


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def app(plugin: ModuleType, engine: Engine) -> FastAPI:
    """The application as vLLM makes it: routes first, then the engine."""
    ours = plugin.AtroposPlugin()
    application = FastAPI()
    ours.attach_router(application)
    await ours.init_state(engine, application.state, Namespace(served_model_name=["big", "also"], model="/m"))
    return application


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as opened:
        yield opened


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=30) as client:
        yield client


async def post(
    client: httpx.AsyncClient, questions: list[Question], model: str | None = None
) -> httpx.Response:
    body = encode_request(questions, model)
    return await client.post(SCORES_PATH, content=body, headers={"content-type": SCORES_TYPE})


def error_of(reply: httpx.Response) -> tuple[int, str, str | None]:
    """Status, and type and param of the error object, whose code must be the status."""
    error = reply.json()["error"]
    assert error["code"] == reply.status_code
    assert error["message"]
    return reply.status_code, error["type"], error["param"]


def test_entry_point_is_the_plugin_that_vllm_looks_for(plugin: ModuleType) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.endpoint_plugins"] == {
        "atropos": f"{plugin.__name__}:{plugin.AtroposPlugin.__name__}"
    }
    ours = plugin.AtroposPlugin()
    assert (ours.name, ours.required_tasks) == ("atropos", ("generate",))


async def test_server_without_an_engine_gets_no_scorer(plugin: ModuleType) -> None:
    application = FastAPI()
    await plugin.AtroposPlugin().init_state(None, application.state, Namespace())
    assert not hasattr(application.state, "atropos_scorer")


@pytest.mark.parametrize("off_loop", [0, 1 << 20])
@pytest.mark.parametrize("k", [0, 1, 4, 20])
async def test_scores_of_several_sequences_are_the_models_in_their_order(
    client: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch, k: int, off_loop: int
) -> None:
    monkeypatch.setattr(serving, "OFF_LOOP_CANDIDATES", off_loop)
    asked = [question(9, k, 3, seed=1), question(2, k, seed=2), question(30, k, 29, seed=3)]
    reply = await post(client, asked, "also")
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == SCORES_TYPE
    for ours, one in zip(decode_answer(reply.content, asked), asked, strict=True):
        right = answer(one)
        np.testing.assert_array_equal(ours.ids, right.ids)
        np.testing.assert_array_equal(ours.logprobs, right.logprobs)
        assert (ours.model, ours.server) == ("big", "vllm 0.32.0")
    assert engine.most_running == 3


async def test_engine_is_asked_for_one_token_and_no_text(client: httpx.AsyncClient, engine: Engine) -> None:
    await post(client, SEVERAL[:1])
    sampling = vars(engine.asked[-1])
    assert sampling == {
        "max_tokens": 1,
        "temperature": 0.0,
        "detokenize": False,
        "output_kind": "final",
        "prompt_logprobs": 4,
        "flat_logprobs": True,
    }


async def test_top_k_beyond_a_small_vocabulary_is_not_asked_of_the_engine(
    client: httpx.AsyncClient, engine: Engine
) -> None:
    engine.model_config.max_logprobs = 60
    asked = [question(5, 60)]
    reply = await post(client, asked)
    assert engine.asked[-1].prompt_logprobs == VOCABULARY
    (scores,) = decode_answer(reply.content, asked)
    np.testing.assert_array_equal(scores.ids, answer(asked[0]).ids)


@pytest.mark.parametrize("v2", [True, False])
async def test_named_ids_are_a_capability_that_is_tried_once(
    client: httpx.AsyncClient, engine: Engine, v2: bool
) -> None:
    engine.v2 = v2
    replies = await asyncio.gather(
        *(client.get(CAPABILITIES_PATH, params={"model": "big"}) for _ in range(3))
    )
    assert [reply.json() for reply in replies] == 3 * [
        {
            "server": "vllm 0.32.0",
            "model": "big",
            "max_model_len": 64,
            "max_k": 20,
            "vocab_size": VOCABULARY,
            "extra_ids": v2,
            "protocol": 1,
        }
    ]
    assert len(engine.asked) == 1


async def test_named_ids_are_scored_where_the_runner_can(client: httpx.AsyncClient, engine: Engine) -> None:
    engine.v2 = True
    asked = [question(9, 4, 3, extra=2, seed=1), question(5, 4, 1, extra=2, seed=2)]
    reply = await post(client, asked)
    for ours, one in zip(decode_answer(reply.content, asked), asked, strict=True):
        right = answer(one)
        np.testing.assert_array_equal(ours.ids, right.ids)
        np.testing.assert_array_equal(ours.extra_logprobs, right.extra_logprobs)


@pytest.mark.parametrize(
    ("asked", "model", "expected"),
    [
        (question(5, 21), None, (400, "BadRequestError", "prompt_logprobs")),
        (question(64, 1), None, (400, "BadRequestError", "input_tokens")),
        (Question(np.array([1, 50], np.int32), 1), None, (400, "BadRequestError", None)),
        (question(5, 1, extra=1), None, (400, "BadRequestError", "prompt_logprob_token_ids")),
        (question(5, 1), "/m", (404, "NotFoundError", "model")),
    ],
    ids=["top_k", "too_long", "vocabulary", "named", "model"],
)
async def test_what_the_model_cannot_take_reaches_no_engine(
    client: httpx.AsyncClient,
    engine: Engine,
    asked: Question,
    model: str | None,
    expected: tuple[int, str, str | None],
) -> None:
    good = Question(
        asked.ids[:2].clip(0, 49), asked.k, 1, None if asked.extra_ids is None else asked.extra_ids[:1]
    )
    assert error_of(await post(client, [good, asked], model)) == expected
    assert not any(hasattr(sampling, "prompt_logprobs") for sampling in engine.asked)


@pytest.mark.parametrize(
    ("body", "media_type", "kind"),
    [
        (b"{}", "application/json", "Bad Request"),
        (b"", SCORES_TYPE, "BadRequestError"),
        (encode_request(SEVERAL, None)[:-3], SCORES_TYPE, "BadRequestError"),
    ],
)
async def test_body_that_is_no_request_is_refused(
    client: httpx.AsyncClient, body: bytes, media_type: str, kind: str
) -> None:
    reply = await client.post(SCORES_PATH, content=body, headers={"content-type": media_type})
    assert error_of(reply)[:2] == (400, kind)


async def test_unknown_name_is_told_by_the_capabilities(client: httpx.AsyncClient) -> None:
    reply = await client.get(CAPABILITIES_PATH, params={"model": "other"})
    assert error_of(reply) == (404, "NotFoundError", "model")
    assert "big, also" in reply.text


async def test_tokenizer_is_that_of_the_models_directory(
    client: httpx.AsyncClient, engine: Engine, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path)
    engine.model_config.tokenizer = str(tmp_path)
    reply = await client.get(TOKENIZER_PATH)
    assert reply.json() == {
        "tokenizer": (tmp_path / "tokenizer.json").read_text("utf-8"),
        "config": (tmp_path / "tokenizer_config.json").read_text("utf-8"),
        "chat_template": None,
    }


async def test_model_without_a_fast_tokenizer_hands_out_none(
    client: httpx.AsyncClient, engine: Engine, tmp_path: Path
) -> None:
    engine.model_config.tokenizer = str(tmp_path)
    assert error_of(await client.get(TOKENIZER_PATH)) == (404, "NotFoundError", None)


def not_a_number(flat: Flat) -> None:
    flat.logprobs[-1] = float("nan")


def one_member_short(flat: Flat) -> None:
    flat.token_ids.pop()
    flat.logprobs.pop()
    flat.end_indices[-1] -= 1


def one_row_short(flat: Flat) -> None:
    flat.start_indices.pop()
    flat.end_indices.pop()


async def test_not_a_number_is_a_failure_and_never_bytes(client: httpx.AsyncClient, engine: Engine) -> None:
    engine.spoil = not_a_number
    assert error_of(await post(client, SEVERAL)) == (500, "InternalServerError", None)


@pytest.mark.parametrize("spoil", [one_member_short, one_row_short])
async def test_lists_of_another_shape_are_a_failure(
    client: httpx.AsyncClient, engine: Engine, spoil: Any
) -> None:
    engine.spoil = spoil
    assert (await post(client, SEVERAL[:1])).status_code == 500


async def test_failure_of_one_sequence_aborts_the_others(client: httpx.AsyncClient, engine: Engine) -> None:
    engine.hold, engine.fails_at = asyncio.Event(), 2
    assert (await post(client, SEVERAL)).status_code == 500
    assert sorted(engine.aborted) == [9, 30]
    assert engine.running == 0


async def test_client_that_goes_away_leaves_nothing_running(app: FastAPI, engine: Engine) -> None:
    engine.hold = asyncio.Event()
    incoming = iter([{"type": "http.request", "body": encode_request(SEVERAL, None), "more_body": False}])
    sent: list[Any] = []

    async def receive() -> Any:
        message = next(incoming, None)
        if message is None:
            await engine.started.wait()
            return {"type": "http.disconnect"}
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": SCORES_PATH,
        "query_string": b"",
        "headers": [(b"content-type", SCORES_TYPE.encode())],
    }
    await app(scope, receive, send)
    assert sorted(engine.aborted) == [2, 9, 30]
    assert engine.running == 0
    assert sent[0]["status"] == 499

"""On a real vLLM every way of asking gives the arrays of the raw reply, and tells the same failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import requests

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.teacher.binary import SCORES_PATH, SCORES_TYPE, decode_answer, encode_request
from atroposlib.teacher.completions import Completions
from atroposlib.teacher.generate import Generate
from atroposlib.teacher.plugin import PluginRoute
from atroposlib.teacher.probing import find_route
from atroposlib.teacher.protocol import Capabilities, Question, Route
from atroposlib.teacher.tokenizer_files import fetch_files
from atroposlib.teacher.transport import TEACHER, Peer, open_session, peer_of
from tests.support.running_vllm import MAX_LOGPROBS, MAX_MODEL_LEN, NAME
from tests.vllm.raw import columns, get, prompt_logprobs, tokenize

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TEXTS = (
    "The capital of France is Paris.",
    "Zażółć gęślą jaźń 🙂",
    "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>",
    "a a a a a a a a a a",
)
ROUTES: tuple[Route, ...] = (PluginRoute(), Generate(), Completions())
CAN = Capabilities("", "", NAME)
DEADLINE_S = 60.0

by_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: str(route.name))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


def config(url: str, model: str = NAME, **settings: Any) -> APIServerConfig:
    return APIServerConfig(base_url=f"{url}/v1", model_name=model, server_type="vllm", **settings)


def peer(url: str, model: str = NAME, **settings: Any) -> Peer:
    return peer_of(config(url, model, **settings), TEACHER)


def asked(ids: list[int], k: int, start: int = 1) -> Question:
    return Question(np.array(ids, np.int32), k, start)


@pytest.mark.parametrize("k", [0, 1, MAX_LOGPROBS])
@pytest.mark.parametrize("text", TEXTS)
async def test_every_route_gives_the_raw_reply(
    vllm: str, session: aiohttp.ClientSession, text: str, k: int
) -> None:
    ids = tokenize(vllm, text)
    raw = [columns(row, token, k) for row, token in zip(prompt_logprobs(vllm, ids, k), ids[1:], strict=True)]
    expected_ids = np.array([[token for token, _ in row] for row in raw])
    expected = np.array([[logprob for _, logprob in row] for row in raw], np.float32)
    for start in (1, len(ids) // 2):
        for route in ROUTES:
            scores = await route.score(session, peer(vllm), asked(ids, k, start), CAN)
            np.testing.assert_array_equal(scores.ids, expected_ids[start - 1 :], err_msg=route.name)
            np.testing.assert_allclose(scores.logprobs, expected[start - 1 :], rtol=0, atol=1e-6)
            assert (scores.start, scores.model) == (start, NAME)


async def test_best_route_is_the_plugin_with_what_vllm_can(vllm: str, session: aiohttp.ClientSession) -> None:
    route, found = await find_route(session, peer(vllm), MAX_LOGPROBS)
    assert isinstance(route, PluginRoute)
    assert found == Capabilities(
        "plugin",
        "vllm 0.32.0",
        NAME,
        max_model_len=MAX_MODEL_LEN,
        max_k=MAX_LOGPROBS,
        # The V1 model runner, which serves on a CPU, scores no ids that are named.
        extra_ids=False,
        start=True,
        binary=True,
    )


async def test_tokenizer_is_the_one_that_vllm_has_loaded(
    vllm: str, model_dir: Path, session: aiohttp.ClientSession
) -> None:
    files = await fetch_files(session, peer(vllm))
    assert files is not None
    assert files.tokenizer == (model_dir / "tokenizer.json").read_text("utf-8")
    assert files.config == (model_dir / "tokenizer_config.json").read_text("utf-8")


async def test_float16_rounds_the_top_k_and_keeps_the_standing_token(
    vllm: str, session: aiohttp.ClientSession
) -> None:
    ids = np.array(tokenize(vllm, TEXTS[0]), np.int32)
    exact, rounded = [
        await ROUTES[0].score(session, peer(vllm), Question(ids, 8, 1, dtype=dtype), CAN)
        for dtype in ("float32", "float16")
    ]
    np.testing.assert_array_equal(rounded.ids, exact.ids)
    np.testing.assert_array_equal(rounded.logprobs[:, 0], exact.logprobs[:, 0])
    np.testing.assert_allclose(rounded.logprobs, exact.logprobs, rtol=5e-4, atol=0)


async def test_several_sequences_of_one_request_are_each_scored(
    vllm: str, session: aiohttp.ClientSession
) -> None:
    questions = [asked(tokenize(vllm, text), 4, 2) for text in TEXTS]
    answer = await post(session, vllm, questions, timeout_s=DEADLINE_S)
    for scores, question in zip(decode_answer(answer, questions), questions, strict=True):
        alone = await ROUTES[0].score(session, peer(vllm), question, CAN)
        # Sequences that share a step are computed together, and round differently.
        np.testing.assert_allclose(scores.logprobs[:, 0], alone.logprobs[:, 0], atol=1e-3)


async def test_lists_of_get_logprobs_are_the_raw_reply(vllm: str) -> None:
    k = 8
    async with ServerManager([config(vllm)]) as manager:
        answer = await manager.get_logprobs(prompt=TEXTS[0], top_k=k)
    ids = tokenize(vllm, TEXTS[0])
    assert answer["prompt_tokens"] == ids
    assert answer["prompt_topk_token_ids"][0] == [-1] * (k + 1)
    assert answer["prompt_topk_logprobs"][0] == [-9999.0] * (k + 1)
    for position, row in enumerate(prompt_logprobs(vllm, ids, k), start=1):
        expected = columns(row, ids[position], k)
        assert answer["prompt_topk_token_ids"][position] == [token for token, _ in expected]
        logprobs = [-9999.0 if token == -1 else logprob for token, logprob in expected]
        assert answer["prompt_topk_logprobs"][position] == pytest.approx(logprobs, abs=1e-6)


@by_route
@pytest.mark.parametrize(
    ("ids", "k", "model", "said"),
    [
        ([1, 2, 3], MAX_LOGPROBS + 1, NAME, "--max-logprobs"),
        ([5] * (MAX_MODEL_LEN + 1), 1, NAME, "--max-model-len"),
        ([5] * MAX_MODEL_LEN, 1, NAME, "--max-model-len"),
        ([1, 49152], 1, NAME, "another tokenizer"),
        ([1, 2, 3], 1, "nobody", "model_name"),
    ],
    ids=["top_k", "too_long", "one_too_long", "vocabulary", "model"],
)
async def test_refusal_is_final_and_names_its_remedy(
    vllm: str, session: aiohttp.ClientSession, route: Route, ids: list[int], k: int, model: str, said: str
) -> None:
    with pytest.raises(TeacherError) as caught:
        await route.score(session, peer(vllm, model), asked(ids, k), CAN)
    assert caught.value.code == "teacher.refused"
    assert said in (caught.value.fix or "")


@pytest.fixture
def paused(vllm: str) -> Iterator[str]:
    """The vLLM, paused until the test ends."""
    requests.post(f"{vllm}/pause?mode=keep", timeout=DEADLINE_S).raise_for_status()
    yield vllm
    resume(vllm)


@by_route
async def test_paused_server_is_waited_for_as_long_as_its_timeout(
    paused: str, session: aiohttp.ClientSession, route: Route
) -> None:
    with pytest.raises(TeacherUnreachable) as caught:
        await route.score(session, peer(paused, timeout=1), asked([1, 2, 3], 1), CAN)
    assert caught.value.timed_out


async def test_sequences_of_a_client_that_has_gone_are_never_computed(
    paused: str, session: aiohttp.ClientSession
) -> None:
    before = computed_tokens(paused)
    gone = [asked([1, 2, 3], 1), asked([4, 5, 6, 7], 1)]
    with pytest.raises(TimeoutError):
        await post(session, paused, gone, timeout_s=1)
    for _ in range(5):
        get(paused, "/is_paused")
    resume(paused)
    await ROUTES[0].score(session, peer(paused), asked([1, 2, 3, 4, 5], 1), CAN)
    assert computed_tokens(paused) == before + 5


async def post(
    session: aiohttp.ClientSession, url: str, questions: list[Question], *, timeout_s: float
) -> bytes:
    """The answer to several questions in one request."""
    body = encode_request(questions, NAME)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    headers = {"Content-Type": SCORES_TYPE}
    async with session.post(url + SCORES_PATH, data=body, headers=headers, timeout=timeout) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.read()


def resume(url: str) -> None:
    requests.post(f"{url}/resume", timeout=DEADLINE_S).raise_for_status()


def computed_tokens(url: str) -> int:
    """Prompt tokens that the engine has worked on so far."""
    for line in requests.get(f"{url}/metrics", timeout=DEADLINE_S).text.splitlines():
        if line.startswith("vllm:prompt_tokens_total"):
            return int(float(line.rpartition(" ")[2]))
    raise AssertionError("vLLM counts no prompt tokens")

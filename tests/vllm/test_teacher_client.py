"""The teacher client's arrays are what a real vLLM answered, and its refusals are told by their reason."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import TeacherError
from atroposlib.teacher.client import score
from atroposlib.teacher.transport import open_session
from tests.support.running_vllm import MAX_LOGPROBS, MAX_MODEL_LEN, NAME
from tests.vllm.raw import columns, prompt_logprobs, tokenize

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TEXTS = (
    "The capital of France is Paris.",
    "Zażółć gęślą jaźń 🙂",
    "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>",
    "a a a a a a a a a a",
)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


def teacher(url: str, model: str = NAME) -> APIServerConfig:
    return APIServerConfig(base_url=f"{url}/v1", model_name=model, server_type="vllm")


@pytest.mark.parametrize("k", [0, 1, 8, MAX_LOGPROBS])
@pytest.mark.parametrize("text", TEXTS)
async def test_arrays_are_the_raw_reply(vllm: str, session: aiohttp.ClientSession, text: str, k: int) -> None:
    ids = tokenize(vllm, text)
    raw = [columns(row, token, k) for row, token in zip(prompt_logprobs(vllm, ids, k), ids[1:], strict=True)]
    scores = await score(session, teacher(vllm), ids, k)
    assert scores.start == 1
    assert scores.model == NAME
    assert scores.ids.tolist() == [[token for token, _ in row] for row in raw]
    expected = np.array([[logprob for _, logprob in row] for row in raw], dtype=np.float32)
    assert np.array_equal(scores.logprobs, expected)


async def test_lists_of_get_logprobs_are_the_raw_reply(vllm: str) -> None:
    k = 8
    async with ServerManager([teacher(vllm)]) as manager:
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
    vllm: str, session: aiohttp.ClientSession, ids: list[int], k: int, model: str, said: str
) -> None:
    with pytest.raises(TeacherError) as caught:
        await score(session, teacher(vllm, model), ids, k)
    assert caught.value.code == "teacher.refused"
    assert said in (caught.value.fix or "")

"""The clients against the real model server: sampled logprobs and teacher scores are of one model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import StudentError, TeacherError
from atroposlib.teacher.transport import open_session
from atroposlib.types import ABSENT_ID
from tests.support.running_model_server import running_model_server

MESSAGES = [{"role": "user", "content": "Count to three."}]
PROMPT = list(b"Once upon a time")


@pytest.fixture(scope="module")
def url(tiny_model_dir: Path) -> Iterator[str]:
    """A model server with the tiny random model."""
    with running_model_server(tiny_model_dir, served_model_name="tiny", dtype="float32") as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(tiny_model_dir))


@pytest.fixture
async def manager(url: str) -> AsyncIterator[ServerManager]:
    async with ServerManager(APIServerConfig(base_url=url, model_name="tiny", timeout=60)) as made:
        yield made


async def tell(url: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Post to one of the server's refresh routes, as a trainer does."""
    async with open_session() as session, session.post(url + path, json=body) as reply:
        assert reply.status == 200


async def test_the_importance_ratio_at_step_zero_is_one(manager: ServerManager) -> None:
    drawn = await manager.sample(PROMPT, n=4, max_tokens=24, temperature=1.0, seed=1)
    for ids, logprobs in zip(drawn.token_ids, drawn.logprobs, strict=True):
        scores = await manager.score(PROMPT + ids, 0)
        scored = scores.logprobs[len(PROMPT) - 1 :, 0]
        assert scores.ids[len(PROMPT) - 1 :, 0].tolist() == ids
        assert np.exp(scored - np.asarray(logprobs)) == pytest.approx(1.0, abs=1e-3)


async def test_a_managed_node_is_scored_token_for_token(manager: ServerManager, tokenizer: Any) -> None:
    async with manager.managed_server(tokenizer=tokenizer) as managed:
        await managed.chat_completion(messages=MESSAGES, n=2, max_tokens=16, temperature=1.0, seed=3)
        nodes = managed.get_state()["nodes"]
    assert len(nodes) == 2
    for node in nodes:
        payload = await manager.get_logprobs(input_ids=node.tokens, top_k=3, max_tokens=1)
        ids, logprobs = payload["prompt_topk_token_ids"], payload["prompt_topk_logprobs"]
        assert payload["prompt_tokens"] == node.tokens
        assert {len(row) for row in ids} == {len(row) for row in logprobs} == {4}
        for position, (mask, logprob) in enumerate(zip(node.masked_tokens, node.logprobs, strict=True)):
            if mask != -100:
                assert ids[position][0] == mask
                assert math.isclose(logprobs[position][0], logprob, abs_tol=1e-3)


async def test_two_turns_are_one_node_that_the_server_scores_alike(
    manager: ServerManager, tokenizer: Any
) -> None:
    async with manager.managed_server(tokenizer=tokenizer) as managed:
        first = await managed.chat_completion(messages=MESSAGES, max_tokens=8, temperature=1.0, seed=5)
        reply = {"role": "assistant", "content": first.choices[0].message.content}
        more = {"role": "user", "content": "Go on."}
        await managed.chat_completion(
            messages=[*MESSAGES, reply, more], max_tokens=8, temperature=1.0, seed=6
        )
        [node] = managed.get_state()["nodes"]
    scores = await manager.score(node.tokens, 0)
    trained = [p for p, mask in enumerate(node.masked_tokens) if mask != -100]
    assert len(trained) > 8
    sampled = np.asarray(node.logprobs)[trained]
    assert scores.logprobs[np.asarray(trained) - 1, 0] == pytest.approx(sampled, abs=1e-3)


async def test_teacher_columns_hold_nearly_all_probability_at_large_k(manager: ServerManager) -> None:
    scores = await manager.score(PROMPT, 20)
    assert scores.model == "tiny"
    assert scores.ids.shape == (len(PROMPT) - 1, 21)
    assert (np.exp(scores.logprobs).sum(axis=1) <= 1 + 1e-3).all()
    present = [row[row != ABSENT_ID] for row in scores.ids]
    assert all(len(set(row.tolist())) == len(row) >= 20 for row in present)


async def test_refusals_of_the_server_are_told_with_their_fix(manager: ServerManager) -> None:
    with pytest.raises(TeacherError, match="--max-logprobs 21 or lower teacher_top_k"):
        await manager.score(PROMPT, 21)
    with pytest.raises(TeacherError, match="another tokenizer"):
        await manager.score([1, 2, 5000], 1)
    with pytest.raises(TeacherError, match="--max-model-len"):
        await manager.score([65] * 600, 1)
    with pytest.raises(StudentError, match="temperature"):
        await manager.sample(PROMPT, temperature=7.0)


async def test_a_wrong_model_name_is_told_with_the_right_ones(url: str) -> None:
    async with ServerManager([APIServerConfig(base_url=url, model_name="nobody", timeout=60)]) as manager:
        with pytest.raises(TeacherError, match=r"got nobody, expected tiny.*model_name"):
            await manager.score(PROMPT, 1)


async def test_openai_style_calls_and_many_at_once(manager: ServerManager) -> None:
    chats = [manager.chat_completion(messages=MESSAGES, n=2, max_tokens=4, temperature=1.0) for _ in range(4)]
    texts = [manager.completion(prompt="abc", max_tokens=4, split="eval") for _ in range(4)]
    for chat in await asyncio.gather(*chats):
        assert [choice.index for choice in chat.choices] == [0, 1]
        assert all(choice.finish_reason in ("stop", "length") for choice in chat.choices)
    for text in await asyncio.gather(*texts):
        assert isinstance(text.choices[0].text, str)


async def test_text_is_tokenized_once_by_the_server(manager: ServerManager) -> None:
    prompt_ids, sampled, logprobs, reasons = await manager.tokens_and_logprobs_completion(
        prompt="abc", max_tokens=3, temperature=1.0
    )
    assert prompt_ids == [97, 98, 99]
    assert len(sampled[0]) == len(logprobs[0])
    assert reasons[0] in ("stop", "length")


async def test_the_policy_version_starts_at_zero_and_follows_updates(tiny_model_dir: Path) -> None:
    with running_model_server(tiny_model_dir) as url:
        async with ServerManager([APIServerConfig(base_url=url, timeout=60)]) as manager:
            assert await manager.policy_version() == 0
            await tell(url, "/update_weight_version", {"new_version": "step-3"})
            assert await manager.policy_version() == 3


async def test_a_paused_server_is_waited_for(tiny_model_dir: Path) -> None:
    with running_model_server(tiny_model_dir) as url:
        async with ServerManager([APIServerConfig(base_url=url, timeout=60)]) as manager:
            await tell(url, "/pause?mode=keep")
            asked = asyncio.create_task(manager.sample(PROMPT, max_tokens=2))
            assert await manager.policy_version() == 0
            assert not asked.done()
            await tell(url, "/resume")
            assert len((await asked).token_ids[0]) >= 1

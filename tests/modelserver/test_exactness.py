"""What the server says of logprobs equals a float64 forward pass of the same model."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.modelserver.conftest import Served, serving
from tests.support.oracle import Oracle, float64_oracle

TOLERANCE = 3e-4
K = 8


@pytest.fixture(scope="module")
def oracle(tiny_model_dir: Path) -> Oracle:
    return float64_oracle(tiny_model_dir)


def prompts(seed: int, lengths: list[int], vocabulary: int = 256) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def assert_entry_is_exact(entry: dict[str, Any], row: NDArray[np.float64], token: int, k: int) -> None:
    """One position of prompt_logprobs against the float64 logprobs [V] of that position."""
    assert next(iter(entry)) == str(token)
    assert len(entry) in (k, k + 1)
    order = np.sort(row)[::-1]
    for key, member in entry.items():
        truth = row[int(key)]
        assert abs(member["logprob"] - truth) <= TOLERANCE
        # Ranks of values closer than float32 can tell apart are not promised.
        assert (order > truth + 1e-3).sum() < member["rank"] <= (order >= truth - 1e-3).sum()
    tops = [member["logprob"] for member in entry.values() if member["rank"] <= k]
    assert np.allclose(sorted(tops, reverse=True), order[: len(tops)], atol=TOLERANCE)


async def assert_prompts_are_exact(server: Served, oracle: Oracle, batch: list[list[int]]) -> None:
    asked = [server.complete(ids, prompt_logprobs=K, max_tokens=1, temperature=0) for ids in batch]
    replies = await asyncio.gather(*asked)
    for ids, (choice,) in zip(batch, replies, strict=True):
        table = oracle(ids)
        entries = choice["prompt_logprobs"]
        assert entries[0] is None
        assert len(entries) == len(ids)
        for position in range(1, len(ids)):
            assert_entry_is_exact(entries[position], table[position - 1], ids[position], K)


async def test_padded_prompts_equal_a_float64_pass_each(tiny: Served, oracle: Oracle) -> None:
    await assert_prompts_are_exact(tiny, oracle, prompts(1, [2, 40, 7, 23, 3]))


async def test_prompts_scored_in_many_chunks_are_exact(
    tiny: Served, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atroposlib.modelserver.scoring.CHUNK_ELEMENTS", 7 * 300)
    await assert_prompts_are_exact(tiny, oracle, prompts(2, [30, 16]))


async def test_sampled_logprobs_are_those_of_scoring_the_same_ids(tiny: Served, oracle: Oracle) -> None:
    """Importance ratio one, with prompts of other lengths in the same padded batch, at any temperature."""
    batch = prompts(3, [4, 19, 11])
    sampled = await asyncio.gather(
        *(
            tiny.complete(ids, n=2, max_tokens=12, logprobs=0, return_token_ids=True, seed=5, temperature=t)
            for ids, t in zip(batch, (1.0, 0.7, 1.6), strict=True)
        )
    )
    for ids, choices in zip(batch, sampled, strict=True):
        for choice in choices:
            full = ids + choice["token_ids"]
            (scored,) = await tiny.complete(full, prompt_logprobs=0, max_tokens=1)
            again = [next(iter(entry.values()))["logprob"] for entry in scored["prompt_logprobs"][len(ids) :]]
            truth = oracle(full)
            exact = [truth[len(ids) + i - 1, token] for i, token in enumerate(choice["token_ids"])]
            assert np.allclose(choice["logprobs"]["token_logprobs"], again, atol=1e-3)
            assert np.allclose(choice["logprobs"]["token_logprobs"], exact, atol=TOLERANCE)


async def test_greedy_tokens_are_the_most_likely_ones(tiny: Served, oracle: Oracle) -> None:
    ids = prompts(4, [9])[0]
    (choice,) = await tiny.complete(ids, max_tokens=10, temperature=0, return_token_ids=True, ignore_eos=True)
    for token in choice["token_ids"]:
        assert token == int(oracle(ids)[-1].argmax())
        ids = [*ids, token]


async def test_top_logprobs_of_sampled_tokens_are_exact(tiny: Served, oracle: Oracle) -> None:
    ids = prompts(5, [9])[0]
    (choice,) = await tiny.complete(
        ids, max_tokens=5, logprobs=3, return_tokens_as_token_ids=True, return_token_ids=True, seed=1
    )
    table = oracle(ids + choice["token_ids"])
    for index, (token, top) in enumerate(
        zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True)
    ):
        row = table[len(ids) + index - 1]
        expected = {token, *(int(best) for best in row.argsort()[::-1][:3])}
        assert {int(name.removeprefix("token_id:")) for name in top} == expected
        for name, logprob in top.items():
            assert abs(logprob - row[int(name.removeprefix("token_id:"))]) <= TOLERANCE


async def test_whole_vocabulary_adds_up_to_one(tiny_model_dir: Path) -> None:
    async with serving(tiny_model_dir, max_logprobs=-1) as server:
        (choice,) = await server.complete([5, 6, 7], prompt_logprobs=-1, max_tokens=1)
    for entry in choice["prompt_logprobs"][1:]:
        assert len(entry) == 300
        assert abs(np.exp([member["logprob"] for member in entry.values()]).sum() - 1) < 1e-5


async def test_not_a_number_is_a_failure_of_its_own_request_only(tiny: Served) -> None:
    embedding = tiny.engine.model.get_input_embeddings().weight
    kept = embedding[77].clone()
    embedding[77] = float("nan")
    # The embeddings are tied to the head, so one bad row spoils every logit; a second id tells rows apart.
    bad = await tiny.client.post("/v1/completions", json={"prompt": [5, 77, 6], "prompt_logprobs": 1})
    sampled = await tiny.client.post("/v1/completions", json={"prompt": [5, 77], "max_tokens": 4})
    assert (bad.status_code, bad.json()["error"]["type"]) == (500, "InternalServerError")
    assert (sampled.status_code, sampled.json()["error"]["type"]) == (500, "InternalServerError")
    embedding[77] = kept
    assert (await tiny.client.post("/v1/completions", json={"prompt": [5, 77]})).status_code == 200


async def test_impossible_token_is_told_as_minus_9999(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = tiny.engine.logits

    def without_token_9(hidden: Any) -> Any:
        logits = honest(hidden)
        logits[:, 9] = -float("inf")
        return logits

    monkeypatch.setattr(tiny.engine, "logits", without_token_9)
    (choice,) = await tiny.complete([5, 9], prompt_logprobs=1, max_tokens=1)
    member = choice["prompt_logprobs"][1]["9"]
    assert (member["logprob"], member["rank"]) == (-9999.0, 300)

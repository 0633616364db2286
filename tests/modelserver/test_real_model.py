"""SmolLM2-135M-Instruct: number for number what the recorded vLLM said, and what float64 says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.modelserver.conftest import serving
from tests.modelserver.test_exactness import assert_prompts_are_exact, prompts
from tests.support.oracle import float64_oracle
from tests.support.record_vllm import scrub, send
from tests.support.recorded import recordings
from tests.support.running_model_server import running_model_server
from tests.support.vllm_cases import CASES, Case, Limits

pytestmark = pytest.mark.model
REAL = Limits("smollm2", max_model_len=1024, vocab_size=49152)
DRAWN_OTHERWISE = {"system_fingerprint", "owned_by"}
RANDOM = {
    "n",
    "id_lists_n",
    "logprobs_sampled",
    "rollout",
    "prompt_logprobs_n",
    "temperature_logprobs",
    "seed_minus_one",
}
"""Sampled cases: the generators differ, so only their shape can agree."""


@pytest.fixture(scope="module")
def url(smollm_dir: Path) -> Iterator[str]:
    limits = {"served_model_name": REAL.model, "max_model_len": REAL.max_model_len, "dtype": "float32"}
    with running_model_server(smollm_dir, **limits) as address:
        yield address


@pytest.mark.parametrize("group", ["info", "completions", "chat"])
def test_replies_are_the_recorded_ones(url: str, group: str) -> None:
    for case in CASES[group](REAL):
        if case.name not in RANDOM:
            ours, theirs = scrub(send(url, case), REAL.model), recordings(group)[case.name]
            assert_same(ours, theirs, case)


def assert_same(ours: Any, theirs: Any, case: Case, path: str = "") -> None:
    """Equal but for float noise: logprobs within 3e-4, ranks beyond the first hundred within a thousandth."""
    where = f"{case.name}{path}"
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs.keys() - DRAWN_OTHERWISE:
            assert_same(ours[key], theirs[key], case, f"{path}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(mine, other, case, f"{path}[{index}]")
    elif isinstance(theirs, float):
        assert math.isclose(ours, theirs, abs_tol=3e-4), where
    elif path.endswith(".rank"):
        assert abs(ours - theirs) <= theirs // 100, where
    else:
        assert ours == theirs, where


async def test_padded_prompts_equal_a_float64_pass_each(smollm_dir: Path) -> None:
    oracle = float64_oracle(smollm_dir)
    async with serving(smollm_dir, dtype="float32", batch_wait_ms=300) as server:
        await assert_prompts_are_exact(server, oracle, prompts(1, [60, 9, 31], vocabulary=49152))


async def test_rollout_has_importance_ratio_one(smollm_dir: Path) -> None:
    body = {"n": 2, "max_tokens": 24, "logprobs": 0, "return_token_ids": True, "temperature": 1.0, "seed": 1}
    async with serving(smollm_dir, dtype="float32") as server:
        asked = [server.complete(text, **body) for text in ("The capital of France is", "Once")]
        for choices in await asyncio.gather(*asked):
            for choice in choices:
                start = len(choice["prompt_token_ids"])
                full = choice["prompt_token_ids"] + choice["token_ids"]
                (scored,) = await server.complete(full, prompt_logprobs=0, max_tokens=1)
                for sampled, entry in zip(
                    choice["logprobs"]["token_logprobs"], scored["prompt_logprobs"][start:], strict=True
                ):
                    assert abs(math.expm1(next(iter(entry.values()))["logprob"] - sampled)) <= 1e-3

"""Fresh rollouts carry the logprobs that the very same weights give their tokens: their ratio is 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from tests.support.running_vllm import NAME
from tests.vllm.conftest import Forward
from tests.vllm.raw import standing, tokenize

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

RATIO_TOLERANCE = 1e-2
PROMPT = "<|im_start|>user\nName three rivers of Europe.<|im_end|>\n<|im_start|>assistant\n"


async def test_importance_ratio_of_fresh_rollouts_is_one(
    vllm: str, model_dir: Path, forward: Forward
) -> None:
    prompt = tokenize(vllm, PROMPT)
    async with ServerManager([APIServerConfig(base_url=vllm, model_name=NAME)]) as manager:
        drawn = await manager.sample(prompt, n=4, max_tokens=32, temperature=1.0, seed=11)
    assert len({tuple(ids) for ids in drawn.token_ids}) > 1
    for ids, logprobs in zip(drawn.token_ids, drawn.logprobs, strict=True):
        whole = prompt + ids
        scored = np.array(standing(vllm, whole)[len(prompt) - 1 :])
        exact = forward(model_dir, whole)[range(len(whole) - 1), whole[1:]].numpy()[len(prompt) - 1 :]
        for reference in (scored, exact):
            assert np.exp(np.array(logprobs) - reference) == pytest.approx(1.0, abs=RATIO_TOLERANCE)

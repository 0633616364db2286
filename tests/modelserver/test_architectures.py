"""Models that mask or cap differently are served exactly too, or refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM as Auto
from transformers import Gemma2Config, Gemma3TextConfig, GPT2Config, PretrainedConfig, Qwen3Config

from atroposlib.errors import UsageError
from tests.modelserver.conftest import serving
from tests.support.oracle import float64_oracle
from tests.support.tiny import write_tokenizer

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
CONFIGS = {
    "sliding window": Gemma3TextConfig(
        **SIZES, sliding_window=6, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "capped logits": Gemma2Config(**SIZES, sliding_window=6, final_logit_softcapping=2.0),
    "query norms": Qwen3Config(**SIZES),
    "learned positions": GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=257, eos_token_id=258
    ),
}


def write_model(directory: Path, config: PretrainedConfig) -> Path:
    torch.manual_seed(0)
    Auto.from_config(config).to(torch.float32).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@pytest.mark.parametrize("name", list(CONFIGS))
async def test_architecture_samples_and_scores_exactly(tmp_path: Path, name: str) -> None:
    directory = write_model(tmp_path, CONFIGS[name])
    oracle = float64_oracle(directory)
    batch = [[5, 9, 33, 2, 8, 70, 11, 12, 14, 200], [40, 41, 42], [7, 7, 9, 100, 80, 60, 5]]
    async with serving(directory) as server:
        replies = await asyncio.gather(
            *(
                server.complete(
                    ids,
                    max_tokens=14,
                    logprobs=0,
                    prompt_logprobs=0,
                    return_token_ids=True,
                    ignore_eos=True,
                    seed=1,
                )
                for ids in batch
            )
        )
    for ids, (choice,) in zip(batch, replies, strict=True):
        full = ids + choice["token_ids"]
        table = oracle(full)
        truth = [table[position - 1, full[position]] for position in range(1, len(full))]
        scored = [next(iter(entry.values()))["logprob"] for entry in choice["prompt_logprobs"][1:]]
        assert np.allclose(scored + choice["logprobs"]["token_logprobs"], truth, atol=3e-4)


async def test_head_that_does_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_model(tmp_path, CONFIGS["query norms"])
    from transformers import Qwen3ForCausalLM

    honest = Qwen3ForCausalLM.forward

    def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        reply = honest(self, *args, **kwargs)
        reply.logits = reply.logits * 2
        return reply

    monkeypatch.setattr(Qwen3ForCausalLM, "forward", scaled)
    with pytest.raises(UsageError, match="head of this architecture"):
        async with serving(directory):
            pass

"""Prompt logprobs the slow and certain way: one sequence, float64, all logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Oracle = Callable[[list[int]], NDArray[np.float64]]


def float64_oracle(directory: Path) -> Oracle:
    """A function from T token ids to logprobs [T, V] in nats; row t is of the token after ids 0..t."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")

    def logprobs(ids: list[int]) -> NDArray[np.float64]:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        table: NDArray[np.float64] = logits.log_softmax(-1).numpy()
        return table

    return logprobs

"""Renders logprobs as a stock vLLM writes them, from full distributions: the inverse of our parsing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def render_row(logprobs: NDArray[np.float32], token: int, k: int) -> dict[str, dict[str, Any]]:
    """The entry of one position: the token that stands there first, then the top-k; no key twice.

    Args:
        logprobs: float32 [V], nats, all of the vocabulary.
        token: Id of the token that stands there.
        k: Top-k asked for; a smaller vocabulary gives all it has.
    """

    def member(index: int, rank: int) -> dict[str, Any]:
        value = float(logprobs[index])
        return {"logprob": max(value, -9999.0), "rank": rank, "decoded_token": f"<{index}>"}

    row = {str(token): member(token, int((logprobs >= logprobs[token]).sum()))}
    top = np.argsort(-logprobs, kind="stable")[:k]
    for rank, index in enumerate(top.tolist(), start=1):
        row[str(index)] = member(index, rank)
    return row


def render(logprobs: NDArray[np.float32], ids: list[int], k: int) -> list[dict[str, dict[str, Any]] | None]:
    """``prompt_logprobs`` of the T tokens ``ids``; ``logprobs`` float32 [T, V], row 0 unused."""
    return [None, *(render_row(logprobs[p], ids[p], k) for p in range(1, len(ids)))]


def fake_logprobs(ids: list[int], vocabulary: int = 50, seed: int = 0) -> NDArray[np.float32]:
    """Normalised logprobs float32 [T, V] that depend on the tokens before each position, as a model's do."""
    rows = []
    for position in range(len(ids)):
        generator = np.random.default_rng([seed, *ids[:position]])
        logits = generator.normal(scale=3.0, size=vocabulary)
        rows.append(logits - np.log(np.exp(logits).sum()))
    return np.asarray(rows, dtype=np.float32).reshape(len(ids), vocabulary)

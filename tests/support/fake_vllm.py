"""Bodies of a stock vLLM's answers for a scripted server: scores and samples of a made-up model."""

from __future__ import annotations

from typing import Any

from tests.support.scripted_server import Reply, Request
from tests.support.vllm_render import fake_logprobs, render


def scores_body(ids: list[int], k: int, seed: int = 0, model: str = "fake") -> dict[str, Any]:
    """The answer of ``/v1/completions`` to a scoring request."""
    choice = {
        "index": 0,
        "text": "x",
        "finish_reason": "length",
        "prompt_logprobs": render(fake_logprobs(ids, seed=seed), ids, k),
    }
    return {"model": model, "choices": [choice]}


def score_reply(request: Request, seed: int = 0) -> Reply:
    """The right answer to a scoring request."""
    return Reply(scores_body(request.body["prompt"], request.body["prompt_logprobs"], seed))


def sample_choice(prompt: list[int], index: int, **fields: Any) -> dict[str, Any]:
    """One sampled choice: three ids that depend on the prompt and on the choice's index."""
    ids = [sum(prompt) % 40 + index, 41, 42]
    return {
        "index": index,
        "text": "".join(f"<{i}>" for i in ids),
        "token_ids": ids,
        "prompt_token_ids": prompt,
        "logprobs": {"token_logprobs": [-0.5 - index, -1.0, -0.25]},
        "finish_reason": "stop",
        **fields,
    }


def sample_body(request: Request, **fields: Any) -> dict[str, Any]:
    """The answer of ``/v1/completions`` to a sampling request with ids; ``fields`` go into every choice."""
    prompt = request.body["prompt"]
    n = request.body.get("n") or 1
    return {"model": "fake", "choices": [sample_choice(prompt, index, **fields) for index in range(n)]}


def vllm_answer(request: Request) -> Reply:
    """A healthy server: health, weight version, scores and samples."""
    if request.path == "/health":
        return Reply(b"")
    if request.path == "/weight_info":
        return Reply({"weight_version": "default"})
    if request.path == "/tokenize":
        return Reply({"tokens": list(request.body["prompt"].encode())})
    if request.path == "/v1/completions" and "prompt_logprobs" in request.body:
        return score_reply(request)
    if request.path == "/v1/completions":
        return Reply(sample_body(request))
    return Reply({"detail": "Not Found"}, 404)

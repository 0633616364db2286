"""What servers of each kind answer to a client that asks which it is: one made-up model behind them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from atroposlib.teacher.protocol import Question
from tests.support import reply_render
from tests.support.fake_vllm import vllm_answer
from tests.support.scripted_server import Reply, Request
from tests.support.vllm_render import fake_logprobs

MODELS = {"data": [{"id": "fake", "owned_by": "vllm", "max_model_len": 1024}]}
DISABLED = {
    "error": {
        "message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out.",
        "type": "PermissionDeniedError",
        "param": None,
        "code": 403,
    }
}

Answer = Callable[[Request], Reply]


def _render(render: Callable[..., dict[str, Any]], ids: list[int], k: int, start: int = 1) -> Reply:
    question = Question(np.asarray(ids, dtype=np.int32), k, start)
    return Reply(render(fake_logprobs(ids), question))


def stock_vllm(request: Request) -> Reply:
    """A vLLM as it starts without options."""
    told = {"/v1/models": Reply(MODELS), "/version": Reply({"version": "0.32.0"})}
    if request.path in told:
        return told[request.path]
    if request.path == "/inference/v1/generate":
        return Reply(DISABLED, 403)
    return vllm_answer(request)


def scale_out_vllm(request: Request) -> Reply:
    """A vLLM with ``--enable-scale-out``; ids that the client names need another runner."""
    if request.path != "/inference/v1/generate":
        return stock_vllm(request)
    params = request.body["sampling_params"]
    if "prompt_logprob_token_ids" in params:
        refusal = {
            "message": "prompt_logprob_token_ids requires the V2 model runner",
            "type": "BadRequestError",
            "param": "prompt_logprob_token_ids",
            "code": 400,
        }
        return Reply({"error": refusal}, 400)
    return _render(reply_render.generate, request.body["token_ids"], params["prompt_logprobs"])


def sglang(request: Request) -> Reply:
    """An SGLang, as documented."""
    told = {
        "/v1/models": Reply({"data": [{"id": "fake", "owned_by": "sglang", "max_model_len": 2048}]}),
        "/get_model_info": Reply({"model_path": "org/fake", "is_generation": True}),
        "/get_server_info": Reply({"version": "0.5.9"}),
    }
    if request.path in told:
        return told[request.path]
    if request.path == "/generate":
        body = request.body
        start = body["logprob_start_len"] + 1
        return _render(reply_render.sglang, body["input_ids"], body["top_logprobs_num"], start)
    return Reply({"detail": "Not Found"}, 404)


def echo_server(request: Request) -> Reply:
    """An OpenAI-style server that knows ``echo`` and ignores ``prompt_logprobs``."""
    if request.path != "/v1/completions":
        return Reply({"detail": "Not Found"}, 404)
    if not request.body.get("echo"):
        return Reply({"model": "fake", "choices": [{"index": 0, "text": "x"}]})
    return _render(reply_render.echo, request.body["prompt"], request.body["logprobs"])

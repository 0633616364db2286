"""Reads a model server's error answers: what it said, and what the user can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

MESSAGE_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer of a model server.

    Attributes:
        status: HTTP status.
        message: The server's words in one line, shortened; empty when it gave none.
        param: Name of the request field that the server objects to, or None.
    """

    status: int
    message: str
    param: str | None


def read_refusal(status: int, body: bytes) -> Refusal:
    """The refusal in ``body``: vLLM's error object, its plain strings, FastAPI's detail, or bare text."""
    try:
        reply: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        reply = body.decode("utf-8", errors="replace")
    if isinstance(reply, Mapping):
        reply = reply.get("error", reply.get("detail", reply.get("message", "")))
    param = None
    if isinstance(reply, Mapping):
        param = reply.get("param")
        reply = reply.get("message", "")
    message = " ".join(str(reply or "").split())
    if len(message) > MESSAGE_CHARACTERS:
        message = message[:MESSAGE_CHARACTERS] + "..."
    return Refusal(status, message, param if isinstance(param, str) else None)


def remedy(refusal: Refusal, request: Mapping[str, Any]) -> str | None:
    """What the user can do about a refused ``request``, or None where the server's words say it all."""
    if refusal.status in (401, 403):
        return "set the api_key that this server expects"
    if 300 <= refusal.status < 400:
        return "the server redirects; set base_url to the address it redirects to"
    if refusal.param == "model":
        return "set model_name to a name that the server serves"
    if refusal.status in (404, 405):
        return "check base_url: this server has no such route"
    # The echo route's top-k has the name that sampled logprobs have elsewhere.
    if refusal.param == "prompt_logprobs" or (refusal.param == "logprobs" and "echo" in request):
        k = {**request, **request.get("sampling_params", {})}.get(refusal.param)
        asked = "a larger --max-logprobs" if k is None else f"--max-logprobs {k}"
        return f"restart vLLM with {asked} or lower teacher_top_k"
    if _too_long(refusal):
        return "restart the server with a larger --max-model-len or lower max_token_length"
    if "out of vocabulary" in refusal.message:
        return "the ids are of another tokenizer than the server's; check model_name and tokenizer_name"
    return None


def _too_long(refusal: Refusal) -> bool:
    # A prompt that fills the context exactly leaves no room for the one token that must be sampled;
    # vLLM then complains of max_tokens 0, which nobody asked for. Its generate route names no field.
    return (
        refusal.param == "input_tokens"
        or (refusal.param == "max_tokens" and "must be at least 1, got 0" in refusal.message)
        or "longer than the maximum model length" in refusal.message
    )

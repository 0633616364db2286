"""Requests to a student server: chat, text, and token ids in with sampled ids and their logprobs out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import aiohttp
from pydantic import ValidationError

from atroposlib.envs.server_handling.replies import ChatCompletion, TextCompletion
from atroposlib.errors import StudentError
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.transport import Party, Peer, bad_reply, call, decode
from atroposlib.types import ABSENT_LOGPROB, Completion

STUDENT = Party(
    "student",
    StudentError,
    StudentError,
    {
        "unreachable": "student.unreachable",
        "refused": "student.refused",
        "failed": "student.failed",
        "bad_reply": "student.bad_reply",
    },
)

LOGPROB_SLACK = 1e-3

NEUTRAL_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What is sent where the caller says nothing. A server would else take the values of the model's
generation_config.json, which shape the samples while their logprobs stay those of the whole distribution."""

_INTERRUPTED = frozenset({"abort", "error"})

ReplyT = TypeVar("ReplyT", ChatCompletion, TextCompletion)


async def chat_once(session: aiohttp.ClientSession, peer: Peer, params: Mapping[str, Any]) -> ChatCompletion:
    """One try of ``/v1/chat/completions``. Raises Passing where another try may succeed."""
    body = await call(session, peer, "/v1/chat/completions", _request(peer, params))
    return await decode(body, peer, lambda reply: _typed(reply, peer, ChatCompletion, params.get("n") or 1))


async def text_once(session: aiohttp.ClientSession, peer: Peer, params: Mapping[str, Any]) -> TextCompletion:
    """One try of ``/v1/completions``. Raises Passing where another try may succeed."""
    body = await call(session, peer, "/v1/completions", _request(peer, params))
    return await decode(body, peer, lambda reply: _typed(reply, peer, TextCompletion, params.get("n") or 1))


async def sample_once(session: aiohttp.ClientSession, peer: Peer, params: Mapping[str, Any]) -> Completion:
    """One try of sampling after ``params["prompt"]`` (token ids, or text that the server tokenizes once).

    The ids are the server's own; its text is never tokenized again.

    Raises:
        Passing: Another try may succeed.
        StudentError: student.no_token_ids, student.bad_reply, student.refused or student.unreachable.
    """
    # logprobs 0: the sampled token's own logprob and no other candidates.
    asked = {**NEUTRAL_SAMPLING, **params, "logprobs": 0, "return_token_ids": True}
    body = await call(session, peer, "/v1/completions", _request(peer, asked))
    return await decode(body, peer, lambda reply: _sampled(reply, peer, params))


def _request(peer: Peer, params: Mapping[str, Any]) -> dict[str, Any]:
    request = {name: value for name, value in params.items() if name != "extra_body"}
    request.update(params.get("extra_body") or {})
    if peer.model is not None:
        request.setdefault("model", peer.model)
    return {**request, "stream": False}


def _typed(reply: Any, peer: Peer, kind: type[ReplyT], n: int) -> ReplyT:
    try:
        parsed = kind.model_validate(reply)
    except ValidationError as failure:
        first = failure.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise bad_reply(
            peer, "the student's answer has another shape", got=f"{where}: {first['msg']}"
        ) from failure
    _check_choices(peer, [choice.index for choice in parsed.choices], n)
    parsed.choices.sort(key=lambda choice: choice.index)
    _check_finished(peer, [choice.finish_reason for choice in parsed.choices])
    return parsed


def _sampled(reply: Any, peer: Peer, params: Mapping[str, Any]) -> Completion:
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise bad_reply(peer, "the student's answer holds no choices")
    _check_choices(peer, [choice.get("index") for choice in choices], params.get("n") or 1)
    choices = sorted(choices, key=itemgetter("index"))
    finish_reasons = [choice.get("finish_reason") for choice in choices]
    _check_finished(peer, finish_reasons)
    return Completion(
        prompt_ids=_prompt_ids(choices[0], peer, params["prompt"]),
        token_ids=[_token_ids(choice.get("token_ids"), peer) for choice in choices],
        logprobs=[_logprobs(choice, peer) for choice in choices],
        texts=[str(choice.get("text", "")) for choice in choices],
        finish_reasons=finish_reasons,
    )


def _check_choices(peer: Peer, indices: Sequence[Any], n: int) -> None:
    if not all(isinstance(index, int) for index in indices) or sorted(indices) != list(range(n)):
        raise bad_reply(
            peer,
            "the student's answer has another number of choices",
            got=len(indices),
            expected=n,
            fix="set n_kwarg_is_ignored if this server ignores n" if len(indices) < n else None,
        )


def _check_finished(peer: Peer, finish_reasons: Sequence[Any]) -> None:
    """Refuse a sample that the server broke off, such as by a pause with mode=abort.

    All choices are sampled again, also those that were complete: they are the short ones, and keeping them
    would favour short answers.
    """
    if not all(isinstance(reason, str) for reason in finish_reasons):
        raise bad_reply(peer, "a choice has no finish_reason", got=list(finish_reasons))
    if _INTERRUPTED.intersection(finish_reasons):
        error = STUDENT.error(
            "the student server broke off a sample",
            code="student.failed",
            where=peer.root,
            got=f"finish_reason {' '.join(sorted(_INTERRUPTED.intersection(finish_reasons)))}",
        )
        raise Passing(error, "interrupted")


def _prompt_ids(choice: Mapping[str, Any], peer: Peer, prompt: Any) -> list[int]:
    seen = _token_ids(choice.get("prompt_token_ids"), peer)
    if not isinstance(prompt, str) and seen != list(prompt):
        raise bad_reply(peer, "the student server sampled after another prompt than it was given")
    return seen


def _token_ids(value: Any, peer: Peer) -> list[int]:
    if value is None:
        raise StudentError(
            "the student server returns no token ids",
            code="student.no_token_ids",
            where=peer.root,
            fix="serve the student with vLLM >= 0.10.2 or atropos model-server (return_token_ids)",
        )
    if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        raise bad_reply(peer, "token ids are not non-negative integers")
    return value


def _logprobs(choice: Mapping[str, Any], peer: Peer) -> list[float]:
    holder = choice.get("logprobs")
    values = holder.get("token_logprobs") if isinstance(holder, dict) else None
    if not isinstance(values, list) or len(values) != len(choice["token_ids"]):
        got = len(values) if isinstance(values, list) else None
        raise bad_reply(
            peer, "logprobs do not line up with the sampled ids", got=got, expected=len(choice["token_ids"])
        )
    for value in values:
        sane = isinstance(value, (float, int)) and math.isfinite(value)
        if not sane or not ABSENT_LOGPROB < value <= LOGPROB_SLACK:
            raise bad_reply(peer, "the logprob of a sampled token is not one", got=value)
    return [float(value) for value in values]

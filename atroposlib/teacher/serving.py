"""The routes of ``/v1/atropos`` around whatever engine scores: our model server, or a vLLM with our plugin.

What the client did wrong is told as vLLM tells it. Failures of the engine pass through, so that the server
answers them as it answers those of its other routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from atroposlib.connection import CLIENT_GONE, while_connected
from atroposlib.errors import WireError
from atroposlib.teacher.binary import (
    CAPABILITIES_PATH,
    SCORES_PATH,
    SCORES_TYPE,
    ServerFacts,
    decode_request,
    encode_answer,
)
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.tokenizer_files import TOKENIZER_PATH, read_files
from atroposlib.types import ABSENT_ID, TeacherScores

Result = TypeVar("Result")
OFF_LOOP_CANDIDATES = 1 << 15
"""Candidates (rows x columns) from which arrays are worked on in a thread: about a millisecond of work."""


class ScoringServer(Protocol):
    """The engine behind the routes."""

    @property
    def names(self) -> Sequence[str]:
        """Names that clients may call the model by; the first is its own."""

    @property
    def tokenizer_source(self) -> tuple[str, str | None]:
        """Directory or hub id of the model's tokenizer, and its revision on the hub."""

    async def facts(self) -> ServerFacts:
        """What it can."""

    async def score(self, questions: Sequence[Question]) -> list[TeacherScores]:
        """The scores of ``questions``, which fit its facts."""


class Refused(Exception):
    """What the routes answer in place of scores.

    Args:
        message: What is wrong, in vLLM's words where it has some.
        param: The part of the request that is to blame, by vLLM's name for it.
        status: HTTP status.
        kind: The error object's ``type``.
    """

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.kind = kind

    def response(self) -> Response:
        """vLLM's error object."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        body = msgspec.json.encode({"error": error})
        return Response(body, self.status, media_type="application/json")


def scores_router(server_of: Callable[[Request], ScoringServer]) -> APIRouter:
    """The three routes; ``server_of`` finds the engine of a request."""
    router = APIRouter()

    @router.get(CAPABILITIES_PATH)
    async def capabilities(request: Request, model: str | None = None) -> Response:
        """What this server can; 404 when ``model`` is none of its names."""
        server = server_of(request)
        try:
            _check_model(model, server.names)
        except Refused as refused:
            return refused.response()
        return Response(msgspec.json.encode(await server.facts()), media_type="application/json")

    @router.get(TOKENIZER_PATH)
    async def tokenizer(request: Request) -> Response:
        """The files of the model's tokenizer; 404 when it has no tokenizer.json."""
        body = await asyncio.to_thread(_tokenizer_json, *server_of(request).tokenizer_source)
        if body is None:
            refused = Refused("The model has no tokenizer.json.", status=404, kind="NotFoundError")
            return refused.response()
        return Response(body, media_type="application/json")

    @router.post(SCORES_PATH)
    async def scores(request: Request) -> Response:
        """Scores of sequences of token ids, as bytes."""
        try:
            return await _answer(request, server_of(request))
        except Refused as refused:
            return refused.response()
        except WireError as error:
            return Refused(str(error), error.where).response()

    return router


def _tokenizer_json(source: str, revision: str | None) -> bytes | None:
    files = read_files(source, revision)
    return None if files is None else msgspec.json.encode(files)


async def _answer(request: Request, server: ScoringServer) -> Response:
    media_type = request.headers.get("content-type", "").lower().partition(";")[0].strip()
    if media_type != SCORES_TYPE:
        raise Refused(f"Unsupported Media Type: Only '{SCORES_TYPE}' is allowed", kind="Bad Request")
    questions, model = decode_request(await request.body())
    _check_model(model, server.names)
    facts = await server.facts()
    for question in questions:
        _check(question, facts)
    scores = await while_connected(request, server.score(questions))
    if scores is None:
        return Response(status_code=CLIENT_GONE)
    size = sum(one.ids.size for one in scores)
    body = await off_loop(size, lambda: _encode(scores, questions))
    return Response(body, media_type=SCORES_TYPE)


async def off_loop(candidates: int, work: Callable[[], Result]) -> Result:
    """The result of ``work`` on arrays of so many candidates: in a thread when there are many."""
    return await asyncio.to_thread(work) if candidates > OFF_LOOP_CANDIDATES else work()


def _encode(scores: Sequence[TeacherScores], questions: Sequence[Question]) -> bytes:
    for one, question in zip(scores, questions, strict=True):
        finite = not np.isnan(one.logprobs).any()
        if question.extra_ids is not None and one.extra_logprobs is not None:
            finite &= not np.isnan(one.extra_logprobs[question.extra_ids != ABSENT_ID]).any()
        if not finite:
            raise Refused("the model's logits are not finite", status=500, kind="InternalServerError")
    return encode_answer(scores, questions[0].dtype)


def _check_model(name: str | None, names: Sequence[str]) -> None:
    if name and name not in names:
        known = ", ".join(names)
        raise Refused(
            f"The model `{name}` does not exist. Valid aliases: {known}.",
            "model",
            status=404,
            kind="NotFoundError",
        )


def _check(question: Question, facts: ServerFacts) -> None:
    """Refuse what the model cannot take, before any of the request reaches the engine."""
    if question.k > facts.max_k:
        raise Refused(
            f"Requested prompt logprobs of {question.k}, which is greater than max allowed: {facts.max_k}",
            "prompt_logprobs",
        )
    # Every engine samples one token more, so one position must be left.
    if len(question.ids) >= facts.max_model_len:
        raise Refused(
            f"This model's maximum context length is {facts.max_model_len} tokens. However, your prompt "
            f"contains {len(question.ids)} input tokens and one more has to be sampled.",
            "input_tokens",
        )
    _check_vocabulary(int(question.ids.max()), facts)
    if question.extra_ids is not None:
        _check_extra(question.extra_ids, facts)


def _check_extra(extra_ids: NDArray[np.int32], facts: ServerFacts) -> None:
    if not facts.extra_ids:
        raise Refused("This server does not score ids that are named.", "prompt_logprob_token_ids")
    if extra_ids.shape[1] > facts.max_k:
        raise Refused(
            f"Requested {extra_ids.shape[1]} token ids per row, which is greater than max allowed: "
            f"{facts.max_k}",
            "prompt_logprob_token_ids",
        )
    _check_vocabulary(int(extra_ids.max()), facts)


def _check_vocabulary(largest: int, facts: ServerFacts) -> None:
    if largest >= facts.vocab_size:
        raise Refused(f"Token id {largest} is out of vocabulary")

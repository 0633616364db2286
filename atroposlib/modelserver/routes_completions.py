"""POST /v1/completions: rollouts, and the scoring of token ids."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import cast

from fastapi import APIRouter, Depends, Request, Response

from atroposlib.connection import CLIENT_GONE, while_connected
from atroposlib.modelserver.http import JsonReply, require_json, served
from atroposlib.modelserver.options import check_max_tokens, sampling_options
from atroposlib.modelserver.refusals import Refusal
from atroposlib.modelserver.replies import completion_reply
from atroposlib.modelserver.schemas import CompletionRequest
from atroposlib.modelserver.served import ServedModel
from atroposlib.modelserver.work import SamplingOptions

MAX_PROMPTS = 1024
router = APIRouter()


@router.post("/v1/completions", dependencies=[Depends(require_json)])
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Complete or score one prompt or several."""
    model = served(request)
    model.check_name(body.model)
    body.refuse_unsupported()
    check_max_tokens(model, "max_tokens", body.max_tokens)
    prompts = prompt_ids(body, model)
    options = [completion_options(body, model, len(ids)) for ids in prompts]
    jobs = await while_connected(request, model.run(prompts, options))
    if jobs is None:
        return Response(status_code=CLIENT_GONE)
    return JsonReply(completion_reply(body, jobs, model))


def prompt_ids(body: CompletionRequest, model: ServedModel) -> list[list[int]]:
    """Token ids of every prompt; raises Refusal for a prompt that the model cannot take."""
    prompt = body.prompt
    prompts: Many[str | list[int]]
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        prompts = [prompt]
    else:
        prompts = cast("list[str | list[int]]", prompt or [])
    if not prompts:
        raise Refusal("You must pass at least one prompt")
    if len(prompts) > MAX_PROMPTS:
        raise Refusal(
            f"prompt list length {len(prompts)} exceeds the maximum allowed count of {MAX_PROMPTS}.", "prompt"
        )
    ids = [
        model.codec.encode(each, add_special_tokens=body.add_special_tokens)
        if isinstance(each, str)
        else each
        for each in prompts
    ]
    for each in ids:
        model.check_prompt(each)
    return ids


def completion_options(body: CompletionRequest, model: ServedModel, prompt_length: int) -> SamplingOptions:
    """The sampling options of one prompt of ``body``."""
    prompt_logprobs = body.prompt_logprobs
    if prompt_logprobs is None and body.echo:
        prompt_logprobs = body.logprobs
    # An echo without generation still samples one token, which the reply leaves out.
    echo_only = body.echo and body.max_tokens == 0
    return sampling_options(
        body,
        model,
        prompt_length=prompt_length,
        max_tokens=1 if echo_only else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=prompt_logprobs,
    )

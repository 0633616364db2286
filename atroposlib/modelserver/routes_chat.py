"""POST /v1/chat/completions, /tokenize and /detokenize: whatever knows the chat template."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from atroposlib.connection import CLIENT_GONE, while_connected
from atroposlib.modelserver.http import JsonReply, require_json, served
from atroposlib.modelserver.options import check_max_tokens, sampling_options
from atroposlib.modelserver.refusals import Refusal
from atroposlib.modelserver.replies import chat_reply
from atroposlib.modelserver.schemas import (
    ChatRequest,
    DetokenizeRequest,
    Message,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from atroposlib.modelserver.served import ServedModel

router = APIRouter(dependencies=[Depends(require_json)])


@router.post("/v1/chat/completions")
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    model = served(request)
    model.check_name(body.model)
    body.refuse_unsupported()
    if body.tools and body.tool_choice != "none":
        raise Refusal(
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    max_tokens: int | None = getattr(body, limit)
    check_max_tokens(model, limit, max_tokens)
    ids = chat_ids(body, model)
    model.check_prompt(ids)
    options = sampling_options(
        body,
        model,
        prompt_length=len(ids),
        max_tokens=max_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
    jobs = await while_connected(request, model.run([ids], [options]))
    if jobs is None:
        return Response(status_code=CLIENT_GONE)
    return JsonReply(chat_reply(body, jobs[0], model))


@router.post("/tokenize")
async def tokenize(body: TokenizeTextRequest | TokenizeChatRequest, request: Request) -> Response:
    """Token ids of a text or of a conversation."""
    model = served(request)
    model.check_name(body.model)
    if isinstance(body, TokenizeChatRequest):
        ids = chat_ids(body, model)
    else:
        ids = model.codec.encode(body.prompt, add_special_tokens=body.add_special_tokens)
    strings = model.codec.pieces(ids) if body.return_token_strs else None
    return JsonReply(
        {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": strings}
    )


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Text of token ids."""
    model = served(request)
    model.check_name(body.model)
    known = [token for token in body.tokens if token < model.codec.size]
    return JsonReply({"prompt": model.codec.decode(known)})


def chat_ids(body: ChatRequest | TokenizeChatRequest, model: ServedModel) -> list[int]:
    """Token ids of the conversation in ``body``, rendered with the model's own template."""
    if body.chat_template is not None or (body.chat_template_kwargs or {}).get("chat_template") is not None:
        raise Refusal(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )
    if not body.messages:
        raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
    template: dict[str, Any] = body.chat_template_kwargs or {}
    try:
        text = model.codec.render_chat(
            [_flat_message(message) for message in body.messages],
            generation_prompt=body.add_generation_prompt,
            continue_final=body.continue_final_message,
            **{"tools": body.tools, **template},
        )
    except Exception as error:  # a template is a program of the model's author and may raise anything
        raise Refusal(str(error) or type(error).__name__) from error
    return model.codec.encode(text, add_special_tokens=body.add_special_tokens)


def _flat_message(message: Message) -> dict[str, Any]:
    """The message for the template, its text parts joined to one text, as most templates expect it."""
    flat = message.model_dump(exclude_unset=True)
    content = message.content
    if not isinstance(content, list):
        return flat
    parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(parts) != len(content):
        raise Refusal("Only text content is supported by the embedded model server.", "messages")
    return {**flat, "content": "\n".join(str(part.get("text", "")) for part in parts)}

"""The replies, key for key as vLLM 0.32 builds them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence as Many
from typing import Any

from atroposlib.modelserver.logprob_replies import (
    Entry,
    TokenNames,
    chat_logprobs,
    completion_logprobs,
    keyed_by_text,
    prompt_entries,
    sampled_entries,
)
from atroposlib.modelserver.schemas import ChatRequest, CompletionRequest
from atroposlib.modelserver.served import ServedModel
from atroposlib.modelserver.work import Job, Sequence


def completion_reply(request: CompletionRequest, jobs: Many[Job], model: ServedModel) -> dict[str, Any]:
    """The answer to a completion request: a choice for every sequence of every prompt."""
    choices = [
        _completion_choice(index, request, sequence, model)
        for index, sequence in enumerate(sequence for job in jobs for sequence in job.sequences)
    ]
    return {
        **_head("cmpl", "text_completion", model),
        "choices": choices,
        **_tail(jobs),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _completion_choice(
    index: int, request: CompletionRequest, sequence: Sequence, model: ServedModel
) -> dict[str, Any]:
    job = sequence.job
    prompt = prompt_entries(job, model.codec)
    text, ids = sequence.text, sequence.ids
    entries: list[Entry | None] = [*sampled_entries(sequence, model.codec)]
    if request.echo:
        shown = "" if request.return_token_ids else model.codec.decode(job.prompt_ids)
        only_prompt = request.max_tokens == 0
        text = shown if only_prompt else shown + text
        ids = job.prompt_ids + ([] if only_prompt else ids)
        entries = (prompt or []) + ([] if only_prompt else entries)
    names = TokenNames(model.codec, bool(request.return_tokens_as_token_ids))
    k = job.options.logprobs
    return {
        "index": index,
        "text": text,
        "logprobs": None if k is None else completion_logprobs(ids, entries, k, names),
        "finish_reason": sequence.finish_reason,
        "stop_reason": sequence.stop_reason,
        "token_ids": sequence.ids if request.return_token_ids else None,
        "prompt_logprobs": keyed_by_text(prompt),
        "prompt_token_ids": job.prompt_ids if request.return_token_ids else None,
        "routed_experts": None,
    }


def chat_reply(request: ChatRequest, job: Job, model: ServedModel) -> dict[str, Any]:
    """The answer to a chat request."""
    return {
        **_head("chatcmpl", "chat.completion", model),
        "choices": [_chat_choice(request, sequence, model) for sequence in job.sequences],
        **_tail([job]),
        "prompt_logprobs": keyed_by_text(prompt_entries(job, model.codec)),
        "prompt_token_ids": job.prompt_ids if request.return_token_ids else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _chat_choice(request: ChatRequest, sequence: Sequence, model: ServedModel) -> dict[str, Any]:
    names = TokenNames(model.codec, bool(request.return_tokens_as_token_ids))
    k = sequence.job.options.logprobs
    message = {
        "role": "assistant",
        "content": sequence.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": sequence.index,
        "message": message,
        "logprobs": None if k is None else chat_logprobs(sequence, k, names),
        "finish_reason": sequence.finish_reason,
        "stop_reason": sequence.stop_reason,
        "token_ids": sequence.ids if request.return_token_ids else None,
        "routed_experts": None,
    }


def _head(prefix: str, kind: str, model: ServedModel) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{secrets.token_hex(8)}",
        "object": kind,
        "created": int(time.time()),
        "model": model.name,
    }


def _tail(jobs: Many[Job]) -> dict[str, Any]:
    prompt = sum(len(job.prompt_ids) for job in jobs)
    sampled = sum(len(sequence.ids) for job in jobs for sequence in job.sequences)
    return {
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + sampled,
            "completion_tokens": sampled,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
    }

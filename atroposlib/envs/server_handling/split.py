"""Splits a request for n choices into single ones, for servers that ignore n, and joins the answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from atroposlib.envs.server_handling.replies import ChatCompletion, TextCompletion, Usage
from atroposlib.types import Completion

ReplyT = TypeVar("ReplyT", ChatCompletion, TextCompletion)


def single_requests(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One request a choice of ``params["n"]``; a seed is counted up, or all choices would be equal."""
    rest = {name: value for name, value in params.items() if name != "n"}
    seed = rest.get("seed")
    seeds: list[dict[str, Any]] = [
        {} if seed is None else {"seed": seed + index} for index in range(params.get("n") or 1)
    ]
    return [{**rest, **one} for one in seeds]


def join_replies(replies: Sequence[ReplyT]) -> ReplyT:
    """The first reply with the choices of all, numbered through, and their usage in sum."""
    first = replies[0]
    if len(replies) == 1:
        return first
    choices = list(chain.from_iterable(reply.choices for reply in replies))
    for index, choice in enumerate(choices):
        choice.index = index
    usages = [reply.usage or Usage() for reply in replies]
    completion_tokens = sum(usage.completion_tokens or 0 for usage in usages)
    prompt_tokens = usages[0].prompt_tokens
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )
    return first.model_copy(update={"choices": choices, "usage": usage})


def join_samples(samples: Sequence[Completion]) -> Completion:
    """All choices of ``samples``, which share one prompt."""
    return Completion(
        prompt_ids=samples[0].prompt_ids,
        token_ids=list(chain.from_iterable(sample.token_ids for sample in samples)),
        logprobs=list(chain.from_iterable(sample.logprobs for sample in samples)),
        texts=list(chain.from_iterable(sample.texts for sample in samples)),
        finish_reasons=list(chain.from_iterable(sample.finish_reasons for sample in samples)),
    )

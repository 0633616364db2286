"""Plain requests to a model server, and their replies read without any code of the product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests

ABSENT = (-1, float("-inf"))


def post(url: str, path: str, **body: Any) -> Any:
    """JSON of an answer with status 200; an empty ``body`` is sent as an empty object."""
    reply = requests.post(url + path, json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply.json()


def get(url: str, path: str) -> Any:
    """JSON of an answer with status 200."""
    reply = requests.get(url + path, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def prompt_logprobs(url: str, ids: list[int], k: int) -> list[dict[str, dict[str, Any]]]:
    """The rows of positions 1.. of T ids as the server writes them."""
    body = {"prompt": ids, "prompt_logprobs": k, "max_tokens": 1, "temperature": 0.0}
    first: None
    rows: list[dict[str, dict[str, Any]]]
    first, *rows = post(url, "/v1/completions", **body)["choices"][0]["prompt_logprobs"]
    assert first is None
    assert len(rows) == len(ids) - 1
    return rows


def columns(row: dict[str, dict[str, Any]], token: int, k: int) -> list[tuple[int, float]]:
    """(id, logprob) of the token that stands there, then of the top-k without it, absent to the end."""
    ranked = sorted((member["rank"], int(key)) for key, member in row.items())
    top = [key for rank, key in ranked if rank <= k and key != token]
    present = [(key, row[str(key)]["logprob"]) for key in [token, *top]]
    return present + [ABSENT] * (k + 1 - len(present))


def standing(url: str, ids: list[int]) -> list[float]:
    """Logprob of each of the ids 1.. under the server's model, scored as a prompt."""
    rows = prompt_logprobs(url, ids, 0)
    return [row[str(token)]["logprob"] for row, token in zip(rows, ids[1:], strict=True)]


def tokenize(url: str, text: str) -> list[int]:
    """Token ids of a text, by the server."""
    tokens: list[int] = post(url, "/tokenize", prompt=text)["tokens"]
    return tokens


@dataclass(frozen=True)
class Sample:
    """What a server sampled: prompt, and ids and logprobs of each choice."""

    prompt: list[int]
    ids: list[list[int]]
    logprobs: list[list[float]]


def sample(url: str, prompt: list[int], **body: Any) -> Sample:
    """Sampled ids with their logprobs."""
    request = {"logprobs": 0, "return_token_ids": True, **body}
    choices = post(url, "/v1/completions", prompt=prompt, **request)["choices"]
    return Sample(
        prompt,
        [choice["token_ids"] for choice in choices],
        [choice["logprobs"]["token_logprobs"] for choice in choices],
    )

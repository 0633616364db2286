"""Asks a server how it cuts a text into tokens, and whether its ids mean what a tokenizer at hand says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import orjson

from atroposlib.teacher.transport import Peer, bad_reply, call, decode, refused, send

SAMPLE_TEXT = (
    "One question before the run: are the 1,024 tokens of `for i in range(10):`, café and 你好 the same?"
)
_NO_ROUTE = frozenset({403, 404, 405, 501})


async def tokenize_once(session: aiohttp.ClientSession, peer: Peer, text: str) -> list[int]:
    """One try of the server's ``/tokenize``: the ids of ``text``, special tokens added as for a prompt."""
    request = {"prompt": text} if peer.model is None else {"prompt": text, "model": peer.model}
    body = await call(session, peer, "/tokenize", request)
    return await decode(body, peer, lambda reply: _tokens(reply, peer))


async def agrees(session: aiohttp.ClientSession, peer: Peer, tokenizer: Any) -> bool | None:
    """Whether the server's ids stand for the same text as the tokenizer's; None where it does not say.

    Tokenizers of one vocabulary may split a text in different ways (a prefix space, a normalizer), so other
    ids count as equal when the server reads ours as the text that they are.

    Raises:
        Passing: Another try may succeed.
        AtroposError: The party's error for a refusal or for no answer.
    """
    ids: list[int] = tokenizer.encode(SAMPLE_TEXT, add_special_tokens=False)
    theirs = await served_ids(session, peer, SAMPLE_TEXT)
    if theirs is None or theirs == ids:
        return None if theirs is None else True
    text: str = tokenizer.decode(ids)
    return await _served_text(session, peer, ids) == text


async def served_ids(session: aiohttp.ClientSession, peer: Peer, text: str) -> list[int] | None:
    """The server's ids of a text without special tokens; None where it has no ``/tokenize``."""
    reply = await _ask(session, peer, "/tokenize", {"prompt": text, "add_special_tokens": False})
    tokens = reply.get("tokens")
    usable = isinstance(tokens, list) and bool(tokens) and set(map(type, tokens)) <= {int}
    return tokens if usable else None


async def _served_text(session: aiohttp.ClientSession, peer: Peer, ids: Sequence[int]) -> str | None:
    text = (await _ask(session, peer, "/detokenize", {"tokens": list(ids)})).get("prompt")
    return text if isinstance(text, str) else None


async def _ask(
    session: aiohttp.ClientSession, peer: Peer, path: str, body: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The JSON object that the server answers; empty where it has no such route."""
    request = dict(body) if peer.model is None else {**body, "model": peer.model}
    answer = await send(session, peer, path, request)
    if answer.status in _NO_ROUTE:
        return {}
    if answer.status != 200:
        raise refused(peer, path, answer, request)
    try:
        reply = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return {}
    return reply if isinstance(reply, dict) else {}


def _tokens(reply: Any, peer: Peer) -> list[int]:
    tokens = reply.get("tokens") if isinstance(reply, dict) else None
    if not isinstance(tokens, list) or not set(map(type, tokens)) <= {int}:
        raise bad_reply(peer, "/tokenize answers no token ids")
    return tokens

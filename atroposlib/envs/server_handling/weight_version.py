"""Reads which weights a student server holds, as an integer step."""

from __future__ import annotations

import re
from typing import Any

import aiohttp

from atroposlib.teacher.transport import Peer, bad_reply, decode, refused, send

PATH = "/weight_info"

INITIAL_VERSION = "default"
"""What vLLM says before any weights were loaded into it: step 0."""

_STEP = re.compile(r"step-(\d+)")


async def read_version(session: aiohttp.ClientSession, peer: Peer) -> str | None:
    """The server's version string, or None where it has no ``/weight_info`` (vLLM without dev mode)."""
    answer = await send(session, peer, PATH)
    if answer.status in (404, 405):
        return None
    if answer.status != 200:
        raise refused(peer, PATH, answer, {})
    return await decode(answer.content, peer, lambda reply: _version(reply, peer))


def _version(reply: Any, peer: Peer) -> str:
    version = reply.get("weight_version") if isinstance(reply, dict) else None
    if not isinstance(version, str):
        raise bad_reply(peer, "/weight_info names no weight_version", got=version, expected="a string")
    return version


def step_of(version: str) -> int | None:
    """``step-<n>`` is n and vLLM's initial ``default`` is 0; any other name cannot be ordered and is None."""
    if version == INITIAL_VERSION:
        return 0
    match = _STEP.fullmatch(version)
    return int(match[1]) if match else None

"""The question before a run: does each teacher answer, has it the model, does it give the top-k?"""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import ConfigError
from atroposlib.teacher.client import score
from atroposlib.teacher.persistence import persist
from atroposlib.teacher.transport import TEACHER, Answer, open_session, peer_of, send

QUICK_SECONDS = 10
PATIENCE_SECONDS = 3.0
PROBE_TEXT = "One question before the run starts."
PROBE_TOKENS = 4


async def check_teacher(teacher: ServerManager, tokenizer: Any, top_k: int) -> None:
    """Ask every server of a teacher for its models and for the scores of a few tokens.

    Raises:
        TeacherUnreachable: A server does not answer.
        ConfigError: It serves other models than the configured one.
        TeacherError: It refuses or cannot give the top-k.
    """
    probe = list(tokenizer.encode(PROBE_TEXT))[:PROBE_TOKENS]
    session = open_session()
    try:
        for server in teacher.servers:
            quick = server.config.model_copy(update={"timeout": min(server.config.timeout, QUICK_SECONDS)})
            await _check_model(session, quick)
            await score(session, server.config, probe, top_k, patience_s=PATIENCE_SECONDS)
    finally:
        await session.close()


async def _check_model(session: aiohttp.ClientSession, config: APIServerConfig) -> None:
    peer = peer_of(config, TEACHER)

    async def once() -> Answer:
        return await send(session, peer, "/v1/models")

    served = _served(await persist(once, patience_s=PATIENCE_SECONDS))
    if peer.model is None or served is None or peer.model in served:
        return
    raise ConfigError(
        "the teacher serves another model",
        where=f"teacher.model_name at {peer.root}",
        got=peer.model,
        expected=" or ".join(served),
    )


def _served(answer: Answer) -> list[str] | None:
    """Ids of the served models; None where the server does not list them."""
    if answer.status != 200:
        return None
    try:
        listed = json.loads(answer.content)
        return [str(model["id"]) for model in listed["data"]]
    except (ValueError, KeyError, TypeError):
        return None

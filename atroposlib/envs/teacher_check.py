"""The questions before a run: does each teacher answer, has it the model, the top-k and the tokenizer?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teachers import PLAIN_NAME, called
from atroposlib.errors import AtroposError, ConfigError, TeacherUnreachable
from atroposlib.teacher.persistence import persist
from atroposlib.teacher.probing import find_route
from atroposlib.teacher.served_tokenizer import agrees
from atroposlib.teacher.transport import TEACHER, open_session, peer_of

logger = logging.getLogger(__name__)

FIRST_ANSWER_SECONDS = 60
"""The first scores of a server may have to wait until it has compiled what it needs."""

PATIENCE_SECONDS = 3.0

T = TypeVar("T")


async def check_servers(name: str, configs: Sequence[APIServerConfig], tokenizer: Any, top_k: int) -> None:
    """Ask each server of a teacher for its models, the scores of a few tokens, and its ids of a text.

    A server that does not answer is told and left to the run, unless none answers.

    Args:
        name: The teacher's, for what is told.
        configs: Its servers, which serve one model.
        tokenizer: The one that the teacher is taken to have.
        top_k: Top-k tokens that will be asked.

    Raises:
        TeacherUnreachable: No server answers.
        ConfigError: A server has another tokenizer than that.
        TeacherError: A server serves another model than the configured one, or cannot give the top-k.
    """
    async with open_session() as session:
        checks = [_check_server(session, name, config, tokenizer, top_k) for config in configs]
        results = await asyncio.gather(*checks, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if isinstance(failure, AtroposError) and name != PLAIN_NAME:
            failure.where = f"teacher {name}: {failure.where}"
    away = [failure for failure in failures if isinstance(failure, TeacherUnreachable)]
    if wrong := [failure for failure in failures if failure not in away]:
        raise wrong[0]
    if away and len(away) == len(configs):
        raise away[0]
    for failure in away:
        logger.warning("%s begins without one of its servers: %s", called(name), failure)


async def _check_server(
    session: aiohttp.ClientSession, name: str, config: APIServerConfig, tokenizer: Any, top_k: int
) -> None:
    peer = peer_of(config, TEACHER)
    peer = replace(peer, timeout_s=min(peer.timeout_s, FIRST_ANSWER_SECONDS))
    _, can = await _patiently(lambda: find_route(session, peer, top_k))
    if await _patiently(lambda: agrees(session, peer, tokenizer)) is False:
        raise ConfigError(
            "the ids of the teacher's server stand for other texts than those of the tokenizer it is taken "
            "to have",
            where=peer.root,
            got=getattr(tokenizer, "name_or_path", None) or None,
            fix="set tokenizer_name to the tokenizer of the model that is served, or correct model_name",
        )
    logger.info("%s at %s: %s, asked over %s", called(name), peer.root, can.model, can.route)


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    return await persist(ask, patience_s=PATIENCE_SECONDS)

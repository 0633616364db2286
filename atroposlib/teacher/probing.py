"""Finds the best route that a teacher server really answers on, by asking it."""

from __future__ import annotations

import logging

import aiohttp
import numpy as np

from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.teacher.completions import Completions
from atroposlib.teacher.echo import Echo
from atroposlib.teacher.generate import Generate
from atroposlib.teacher.plugin import PluginRoute
from atroposlib.teacher.protocol import Capabilities, Question, Route
from atroposlib.teacher.served import read_served
from atroposlib.teacher.sglang import SGLang
from atroposlib.teacher.transport import Peer

ROUTES: tuple[Route, ...] = (PluginRoute(), SGLang(), Generate(), Completions(), Echo())
"""The ways of asking a server, the best one first."""

PROBE_IDS = (1, 0, 2)
"""Ids that every vocabulary has."""

logger = logging.getLogger(__name__)


async def find_route(session: aiohttp.ClientSession, peer: Peer, k: int) -> tuple[Route, Capabilities]:
    """The first route of :data:`ROUTES` that answers a short question for the top-``k`` rightly.

    A status 200 proves nothing, as servers ignore fields that they do not know: what came back is checked as
    every later answer is, which also finds a server that answers logits.

    Raises:
        Passing: The server is down, busy or broken; the failure may pass.
        TeacherUnreachable: No answer within the peer's timeout.
        TeacherError: teacher.no_route with what each route said; teacher.refused for a wrong key or model.
    """
    await read_served(session, peer)
    said: dict[str, TeacherError | None] = {}
    for route in ROUTES:
        try:
            capabilities = await route.probe(session, peer)
            if capabilities is None:
                said[route.name] = None
                continue
            question = Question(np.array(PROBE_IDS, dtype=np.int32), k)
            await route.score(session, peer, question, capabilities)
        except TeacherUnreachable:
            raise
        except TeacherError as error:
            said[route.name] = error
            continue
        logger.info("teacher %s is asked over %s (%s)", peer.root, route.name, capabilities.server)
        return route, capabilities
    raise _no_route(peer, said)


def _no_route(peer: Peer, said: dict[str, TeacherError | None]) -> TeacherError:
    errors = {name: error for name, error in said.items() if error is not None}
    told = [
        f"{name}: {f'{error.what} ({error.got})' if error.got else error.what}"
        for name, error in errors.items()
    ]
    missing = [name for name, error in said.items() if error is None]
    if missing:
        told.append(f"not offered: {', '.join(missing)}")
    fixes = (error.fix for error in errors.values() if error.fix)
    return TeacherError(
        "no way of asking the teacher server works",
        code="teacher.no_route",
        where=peer.root,
        got="; ".join(told),
        fix=next(fixes, "serve the teacher with vLLM, SGLang or atropos model-server"),
    )

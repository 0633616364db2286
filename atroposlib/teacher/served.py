"""Asks a model server what it serves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from atroposlib.teacher.protocol import Capabilities
from atroposlib.teacher.transport import BUSY, Answer, Peer, refused, send

MODELS_PATH = "/v1/models"


@dataclass(frozen=True, slots=True)
class Served:
    """What a server says of itself.

    Attributes:
        server: Server and version, as ``vllm 0.32.0``; empty where it does not say.
        models: Longest prompt and completion together (tokens, None where it does not say) of each model
            that it lists; empty where it lists none.
    """

    server: str = ""
    models: dict[str, int | None] = field(default_factory=dict)

    def model(self, peer: Peer) -> str:
        """The model that ``peer`` is asked for: its configured name, else the first that is listed."""
        return peer.model if peer.model is not None else next(iter(self.models), "")

    def max_model_len(self, peer: Peer) -> int | None:
        """Longest prompt and completion together of :meth:`model`, in tokens."""
        return self.models.get(self.model(peer))

    def capabilities(self, route: str, peer: Peer) -> Capabilities:
        """What is known of the server before a route has been tried."""
        return Capabilities(route, self.server, self.model(peer), max_model_len=self.max_model_len(peer))


async def read_served(session: aiohttp.ClientSession, peer: Peer) -> Served:
    """What the server lists at ``/v1/models`` and ``/version``; one that has neither route says nothing.

    Raises:
        Passing: The failure may pass.
        AtroposError: The party's refused for a wrong key, or a model that the server does not list.
    """
    listed = await send(session, peer, MODELS_PATH)
    if listed.status in (401, 403):
        raise refused(peer, MODELS_PATH, listed, {})
    models, owner = _cards(_json(peer, MODELS_PATH, listed))
    if models and peer.model is not None and peer.model not in models:
        raise peer.party.error(
            f"the {peer.party.name} server serves another model",
            code=peer.party.codes["refused"],
            where=peer.root,
            got=peer.model,
            expected=" or ".join(models),
            fix="set model_name to a name that the server serves",
        )
    told = await get_json(session, peer, "/version")
    version = told.get("version") if isinstance(told, dict) else None
    return Served(f"{owner} {version if isinstance(version, str) else ''}".strip(), models)


async def get_json(session: aiohttp.ClientSession, peer: Peer, path: str) -> Any:
    """What GET ``path`` answers, None where the server has no such route or answers no JSON.

    Raises:
        Passing: The failure may pass.
    """
    return _json(peer, path, await send(session, peer, path))


def _json(peer: Peer, path: str, answer: Answer) -> Any:
    # What lies before a server may answer an unknown path with any 4xx.
    if 400 <= answer.status < 500 and answer.status not in BUSY:
        return None
    if answer.status != 200:
        raise refused(peer, path, answer, {})
    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return None


def _cards(reply: Any) -> tuple[dict[str, int | None], str]:
    """Longest sequence of each listed model, and who the first says owns it."""
    listed = reply.get("data") if isinstance(reply, dict) else None
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    models = {
        card["id"]: length if isinstance(length := card.get("max_model_len"), int) else None
        for card in cards
        if isinstance(card.get("id"), str)
    }
    owner = cards[0].get("owned_by") if cards else None
    return models, owner if isinstance(owner, str) else ""

"""Servers to examine: a made-up route whose answers a test shapes, and subjects of a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from atroposlib.config.server import APIServerConfig
from atroposlib.doctor.subject import Scoring, Subject, as_ids, peer_for
from atroposlib.teacher.protocol import Capabilities, Question
from atroposlib.teacher.transport import TEACHER, Peer
from atroposlib.types import TeacherScores
from tests.support.vllm_render import fake_logprobs

Shape = Callable[[NDArray[np.float32], int], NDArray[np.float32]]


class MadeUpRoute:
    """Answers rightly what a test then shapes; it is given the logprobs [R, K] and the number of the call.

    Attributes:
        asked: The questions so far.
    """

    name = "made-up"

    def __init__(self, shape: Shape = lambda logprobs, call: logprobs) -> None:
        self.shape = shape
        self.asked: list[Question] = []

    async def probe(self, session: aiohttp.ClientSession, peer: Peer) -> Capabilities | None:
        """Never asked."""
        raise AssertionError("a made-up route is not probed")

    async def score(
        self, session: aiohttp.ClientSession, peer: Peer, question: Question, capabilities: Capabilities
    ) -> TeacherScores:
        """The scores of the made-up model."""
        self.asked.append(question)
        ids, logprobs = scored(question.ids.tolist(), question.k, question.start)
        return TeacherScores(ids, self.shape(logprobs, len(self.asked)), question.start, "fake")


def scored(ids: list[int], k: int, start: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and logprobs [R, k + 1] of the made-up model, columns as in TeacherScores."""
    whole = fake_logprobs(ids, vocabulary=300)
    rows = []
    for position in range(start, len(ids)):
        order = [token for token in np.argsort(-whole[position])[:k].tolist() if token != ids[position]]
        rows.append([ids[position], *order, *[-1] * (k - len(order))])
    columns = np.asarray(rows, dtype=np.int32)
    values = np.take_along_axis(whole[start:], np.maximum(columns, 0), axis=1)
    return columns, np.where(columns < 0, np.float32(-np.inf), values)


def subject(url: str, session: Any, **fields: Any) -> Subject:
    """A teacher called ``math`` at ``url``."""
    config = APIServerConfig(base_url=url, model_name=fields.pop("model_name", "fake"))
    defaults = {"name": "math", "config": config, "peer": peer_for(config, TEACHER), "top_k": 4}
    return Subject(**{**defaults, "session": session, **fields})


def scoring(route: MadeUpRoute, *, k: int = 4, max_model_len: int | None = 60) -> Scoring:
    """A server that is asked over the made-up route; its session is never used."""
    can = Capabilities("made-up", "", "fake", max_model_len=max_model_len, max_k=20)
    return Scoring(subject("http://localhost:1", None), route, can, k, as_ids(list(range(200))))

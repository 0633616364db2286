"""A server that the doctor examines: how it is named and asked, and what is known of its tokenizer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import aiohttp
import numpy as np
from numpy.typing import NDArray

from atroposlib.config.server import APIServerConfig
from atroposlib.teacher.persistence import persist
from atroposlib.teacher.protocol import Capabilities, Question, Route
from atroposlib.teacher.transport import Party, Peer, peer_of
from atroposlib.types import TeacherScores

T = TypeVar("T")

QUICK_S = 10.0
"""Seconds for what a server answers without its model."""

ANSWER_S = 60.0
"""Seconds for a few tokens: a server may first have to compile what scoring needs."""

PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Subject:
    """One server.

    Attributes:
        name: As findings call it: ``math``, ``math[1]``, ``student``.
        config: Its settings.
        peer: The server as a client calls it, with a short timeout.
        top_k: Top-k tokens that a run will ask of it.
        session: The session that asks it.
        student: The student's tokenizer, None where it is not at hand.
        tokenizer: The tokenizer that the settings name for this server, None where it is not at hand.
        trouble: Why it is not; empty where the settings name none.
        align: Whether a run aligns another tokenizer with the student's.
        other: Whether the server is known to have another tokenizer, which can be aligned.
    """

    name: str
    config: APIServerConfig
    peer: Peer
    top_k: int
    session: aiohttp.ClientSession
    student: Any = None
    tokenizer: Any = None
    trouble: str = ""
    align: bool = True
    other: bool = False

    @property
    def quick(self) -> Peer:
        """The peer for questions that need no forward pass."""
        return replace(self.peer, timeout_s=min(self.peer.timeout_s, QUICK_S))


@dataclass(frozen=True, slots=True)
class Scoring:
    """A server that scores over a route.

    Attributes:
        subject: The server.
        route: The way it is asked.
        can: What it can over that route.
        k: Top-k tokens that it is asked here: the run's, or fewer where it gives no more.
        ids: int32 [N] of a text, in its vocabulary.
    """

    subject: Subject
    route: Route
    can: Capabilities
    k: int
    ids: NDArray[np.int32]

    async def score(self, ids: NDArray[np.int32], start: int = 1, k: int | None = None) -> TeacherScores:
        """Scores of one sequence with the top-``k``, :attr:`k` when None.

        Raises:
            AtroposError: Refused, failed, or an answer that is not the scores.
        """
        subject, question = self.subject, Question(ids, self.k if k is None else k, start)
        return await patiently(lambda: self.route.score(subject.session, subject.peer, question, self.can))


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What ``ask`` returns, asked again for a short while where its failure may pass."""
    return await persist(ask, patience_s=PATIENCE_S)


def peer_for(config: APIServerConfig, party: Party) -> Peer:
    """The server of a config, with a timeout that ends a check and not an evening."""
    peer = peer_of(config, party)
    return replace(peer, timeout_s=min(peer.timeout_s, ANSWER_S))


def as_ids(ids: Sequence[int]) -> NDArray[np.int32]:
    """int32 [N] of token ids."""
    return np.asarray(ids, dtype=np.int32)

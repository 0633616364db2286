"""One student or teacher server of an environment: its slots, its health, and its counters."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import replace
from statistics import fmean
from typing import Literal

import aiohttp
from tenacity import AsyncRetrying, retry_if_result, wait_fixed

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.slots import Slots
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.transport import Party, Peer, peer_of, send

HEALTH_TIMEOUT_S = 5.0
HEALTH_EVERY_S = 1.0

Split = Literal["train", "eval"]


class Server:
    """A model server: how many requests it takes at once, whether it answers, and what it did.

    Attributes:
        config: Its settings.
        slots: Bounds of requests in flight, one for training and one for evaluation.
        server_healthy: False from a failed request until ``/health`` answers 200 again.
        last_failure: The failure that last made it unhealthy, or None.
        failed_at: When that was, on the event loop's clock; 0 for never.
        has_version: False once it turned out to have no ``/weight_info``.
        counts: Tries by outcome: ``ok``, ``passing`` (repeated here or elsewhere), ``failed``.
        seconds: Times from request to answer of the last ``rolling_buffer_length`` tries that succeeded.
    """

    def __init__(self, config: APIServerConfig) -> None:
        self.config = config
        self.slots: dict[Split, Slots] = {
            "train": Slots(config.num_max_requests_at_once),
            "eval": Slots(config.num_requests_for_eval),
        }
        self.server_healthy = True
        self.last_failure: Passing | None = None
        self.failed_at = 0.0
        self.has_version = True
        self.counts: Counter[str] = Counter()
        self.seconds: deque[float] = deque(maxlen=config.rolling_buffer_length)

    def peer(self, party: Party) -> Peer:
        """The server as a client of ``party`` calls it."""
        return peer_of(self.config, party)

    def suspect(self, failure: Passing) -> None:
        """Send it nothing more until it is healthy again."""
        self.server_healthy = False
        self.last_failure = failure
        self.failed_at = asyncio.get_running_loop().time()

    def metrics(self) -> dict[str, float]:
        """Tries by outcome, and mean and longest time (seconds) of the last answers."""
        if not self.seconds:
            return dict(self.counts)
        return {**self.counts, "seconds_mean": fmean(self.seconds), "seconds_max": max(self.seconds)}

    async def recover(self, session: aiohttp.ClientSession, party: Party) -> None:
        """Return once ``/health`` answers 200 (at once without ``health_check``); healthy from then on."""
        peer = replace(self.peer(party), timeout_s=HEALTH_TIMEOUT_S)
        if self.config.health_check:
            await AsyncRetrying(
                retry=retry_if_result(lambda answers: not answers), wait=wait_fixed(HEALTH_EVERY_S)
            )(_answers, session, peer)
        self.server_healthy = True


async def _answers(session: aiohttp.ClientSession, peer: Peer) -> bool:
    try:
        return (await send(session, peer, "/health")).status == 200
    except (Passing, peer.party.unreachable):
        return False

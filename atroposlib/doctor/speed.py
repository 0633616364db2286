"""How long a server takes, how many bytes its answers have, and what that makes for a run."""

from __future__ import annotations

import time
from types import SimpleNamespace

import aiohttp
import numpy as np
from numpy.typing import NDArray

from atroposlib.doctor.check import Check
from atroposlib.doctor.subject import Scoring
from atroposlib.envs.server_handling.pool import together

SPEED = "speed"

TOKENS = 512
AT_ONCE = 4
SLOW_S = 3.0
"""A server that takes longer for one sequence is asked for no more of them."""


class Meter:
    """Counts the bytes of the answers that come in over a session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._bodies: list[aiohttp.StreamReader] = []
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._answered)
        trace.freeze()
        session.trace_configs.append(trace)

    async def _answered(
        self, session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        # The body is still to come; its reader knows in the end what has passed through.
        self._bodies.append(params.response.content)

    def take(self) -> int:
        """Bytes of the answers since the last call."""
        total = sum(body.total_bytes for body in self._bodies)
        self._bodies.clear()
        return total


async def check_speed(server: Scoring, meter: Meter) -> Check:
    """Time one sequence, then several at once.

    Args:
        server: A server that nobody else asks at the moment.
        meter: Counts the session's bytes.

    Raises:
        TeacherError: As :meth:`Scoring.score`.
    """
    sequences = _sequences(server)
    tokens = len(sequences[0])
    meter.take()
    alone = await _seconds(server, sequences[:1])
    size = meter.take()
    if alone <= SLOW_S:
        alone = min(alone, await _seconds(server, sequences[:1]))
        together_s, how = await _seconds(server, sequences), f"{len(sequences)} sequences at once"
    else:
        sequences = sequences[:1]
        together_s, how = alone, "one sequence at a time"
    facts = {
        "tokens": tokens,
        "top_k": server.k,
        "ms_per_1k_tokens": alone / tokens * 1e6,
        "bytes_per_1k_tokens": size / tokens * 1e3,
        "tokens_per_second": len(sequences) * tokens / together_s,
    }
    detail = (
        f"{facts['ms_per_1k_tokens']:,.0f} ms and {facts['bytes_per_1k_tokens'] / 1e3:,.1f} kB for 1k tokens "
        f"at k = {server.k}; about {facts['tokens_per_second']:,.0f} tokens/s, {how}"
    )
    return Check(SPEED, server.subject.name, "ok", detail, facts=facts)


async def _seconds(server: Scoring, sequences: list[NDArray[np.int32]]) -> float:
    started = time.perf_counter()
    await together([server.score(ids) for ids in sequences])
    return time.perf_counter() - started


def _sequences(server: Scoring) -> list[NDArray[np.int32]]:
    """Sequences of one length that begin differently, so that no prefix cache answers for them."""
    longest = server.can.max_model_len or TOKENS + 1
    length = min(TOKENS, longest - 1)
    return [np.resize(np.roll(server.ids, -7 * turn), length) for turn in range(AT_ONCE)]

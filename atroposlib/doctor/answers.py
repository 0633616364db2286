"""Are a server's scores of the ids that were sent, are they probabilities, and the same every time?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atroposlib.doctor.check import Check
from atroposlib.doctor.logits import NORMALISED, judge
from atroposlib.doctor.subject import Scoring
from atroposlib.envs.server_handling.pool import together
from atroposlib.types import TeacherScores

SEQUENCE_TOKENS = 96
SHUFFLED = (2, 0, 1)
LEAST_TOP_K = 8

NOISE_NATS = 0.05
"""Largest difference between two answers that is no news: kernels add in another order for another batch."""

WRONG_NATS = 1.0
"""From here on no rounding explains it: 16-bit logits near 30 are 0.125 apart."""


async def check_answers(server: Scoring) -> list[Check]:
    """Score three sequences with one beginning, the first of them three times, all of them in another order.

    Raises:
        TeacherError: The server refused, failed, or answered with something that is not the scores.
    """
    sequences = _sequences(server)
    # With the standing token alone there is little to see; a server that names no limit gives one token more.
    limit = 1 if server.can.max_k is None else server.can.max_k
    k = max(server.k, min(LEAST_TOP_K, limit))
    first = [await server.score(ids, k=k) for ids in sequences]
    again = [await server.score(sequences[0], k=k) for _ in range(2)]
    shuffled = await together([server.score(sequences[index], k=k) for index in SHUFFLED])
    earlier = [first[index] for index in SHUFFLED]
    repeats = max(apart(first[0], scores, k) for scores in again)
    order = max(apart(*pair, k) for pair in zip(earlier, shuffled, strict=True))
    return [
        _echoed(server, sequences, first),
        _normalised(server, first, k),
        _stable(server, "repeatable", repeats, "the same sequence three times"),
        _stable(server, "order", order, "three sequences with one beginning, reordered and all at once"),
    ]


def _sequences(server: Scoring) -> list[NDArray[np.int32]]:
    """Three sequences of one length: a shared first half, and each its own second half."""
    longest = server.can.max_model_len or SEQUENCE_TOKENS + 1
    half = min(SEQUENCE_TOKENS, longest - 1, len(server.ids)) // 2
    beginning, rest = server.ids[:half], server.ids[half:]
    return [np.concatenate([beginning, np.roll(rest, -turn * half)[:half]]) for turn in range(3)]


def apart(one: TeacherScores, other: TeacherScores, k: int) -> float:
    """Largest difference (nats) of two answers to one question; ``inf`` where only one has an entry.

    Columns are compared by rank, since near-equal tokens change places; the last of the top-k is left out,
    since it is absent in one answer when the standing token has crossed the edge of the top-k.
    """
    width = max(1, k)
    mine, theirs = one.logprobs[:, :width], other.logprobs[:, :width]
    with np.errstate(invalid="ignore"):
        difference = np.where(mine == theirs, 0.0, np.abs(mine - theirs))
    return float(difference.max(initial=0.0))


def _echoed(server: Scoring, sent: Sequence[NDArray[np.int32]], got: Sequence[TeacherScores]) -> Check:
    right = all(
        np.array_equal(scores.ids[:, 0], ids[scores.start :]) for ids, scores in zip(sent, got, strict=True)
    )
    rows = sum(len(scores.ids) for scores in got)
    if right:
        return Check("ids echoed", server.subject.name, "ok", f"{rows} rows of the ids that were sent")
    return Check(
        "ids echoed",
        server.subject.name,
        "fail",
        "rows are of other ids than were sent, or give a standing token no probability at all",
        "serve the teacher with vLLM or atropos model-server, and nothing between that changes prompts",
    )


def _normalised(server: Scoring, got: Sequence[TeacherScores], k: int) -> Check:
    logprobs = np.concatenate([scores.logprobs for scores in got])
    found = judge(server.subject.name, logprobs)
    if found is not None:
        return found
    mass = np.exp(logprobs).sum(axis=1)
    detail = f"the top {k} and the token itself hold {mass.mean():.1%} of the probability on average"
    facts = {"top_k": k, "mean_sum": float(mass.mean()), "largest_sum": float(mass.max())}
    return Check(NORMALISED, server.subject.name, "ok", detail, facts=facts)


def _stable(server: Scoring, name: str, nats: float, what: str) -> Check:
    facts = {"largest_difference_nats": nats}
    detail = f"{what}: at most {nats:.2g} nats apart"
    if nats <= NOISE_NATS:
        return Check(name, server.subject.name, "ok", detail, facts=facts)
    if nats <= WRONG_NATS:
        fix = "more than rounding of 32-bit weights; expect it of 16-bit weights, else look for what differs"
        return Check(name, server.subject.name, "warn", detail, fix, facts)
    fix = (
        "scores depend on what else the server does: restart it with --no-enable-prefix-caching, without "
        "speculative decoding, or with another version"
    )
    return Check(name, server.subject.name, "fail", detail, fix, facts)

"""How the environments of a run share its batches: the arithmetic behind GET /status-env."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from atroposlib.api.run_state import EnvRecord
from atroposlib.store.protocol import EnvQueue, StoreStats

MIN_ENV_WEIGHT = 0.01
"""No environment is told a smaller share, so none stops altogether."""


def env_weight(env: EnvRecord | None, connected: Sequence[EnvRecord]) -> float:
    """An environment's share of the run: its weight times its context length among all connected ones.

    When nobody has a positive weight all share equally. An environment that the API does not know (it was
    restarted) goes on as if it were alone.
    """
    if env is None:
        return 1.0
    total = sum(_claim(other) for other in connected)
    if total <= 0:
        return 1.0 / max(1, len(connected))
    return min(1.0, max(MIN_ENV_WEIGHT, _claim(env) / total))


def unallocated_fraction(connected: Sequence[EnvRecord]) -> float:
    """The part of a batch that no connected environment's ``min_batch_allocation`` claims."""
    return 1.0 - min(1.0, sum(env.registration.min_batch_allocation or 0.0 for env in connected))


def status_env(
    env_id: int,
    env: EnvRecord | None,
    connected: Sequence[EnvRecord],
    stats: StoreStats,
    batch_size: int,
) -> dict[str, float | int]:
    """The figures by which an environment decides how much more to produce.

    Args:
        env_id: Who asks, known or not.
        env: Its record, None when the API does not know it.
        connected: Environments that take part now.
        stats: The store's.
        batch_size: Sequences of a batch, 0 before a trainer registered.

    Returns:
        ``queue_size`` and ``self_queue_size`` in groups of the asker's size, ``unallocated_fraction``,
        ``max_group_size`` of the whole queue in sequences, ``env_weight``.
    """
    largest = max((queue.largest for queue in stats.by_env.values()), default=1)
    own = stats.by_env.get(env_id, EnvQueue())
    group_size = max(1, own.largest, env.registration.group_size if env else largest)
    others = _others_sequences(env_id, connected, stats, batch_size, largest)
    return {
        "queue_size": (own.sequences + others) // group_size,
        "unallocated_fraction": unallocated_fraction(connected),
        "self_queue_size": own.sequences // group_size,
        "max_group_size": largest,
        "env_weight": env_weight(env, connected),
    }


def why_no_batch(stats: StoreStats, batch_size: int, minimums: Mapping[int, int]) -> str | None:
    """Why no batch could be formed though enough is queued; None when more groups are simply awaited.

    Args:
        stats: The store's.
        batch_size: Sequences of a batch.
        minimums: As the store's ``lease`` was given them.
    """
    if stats.queued_sequences < batch_size:
        return None
    # A missing minimum share comes or is waived, so it is no reason to worry.
    if any(stats.by_env.get(env_id, EnvQueue()).sequences < least for env_id, least in minimums.items()):
        return None
    queued = f"{stats.queued} groups ({stats.queued_sequences} sequences) queued"
    return f"{queued}, none add up to a batch of {batch_size}"


def _others_sequences(
    env_id: int, connected: Sequence[EnvRecord], stats: StoreStats, batch_size: int, largest: int
) -> int:
    """What others have queued, each in whole groups of the largest size, beyond its own minimum share."""
    if largest == 1:
        return 0
    minimums: dict[int | None, int] = {
        env.env_id: int(batch_size * (env.registration.min_batch_allocation or 0.0)) for env in connected
    }
    return sum(
        max(0, math.ceil(queue.sequences / largest) * largest - minimums.get(other, 0))
        for other, queue in stats.by_env.items()
        if other != env_id
    )


def _claim(env: EnvRecord) -> float:
    return max(0, env.registration.max_token_length) * max(0.0, env.registration.weight)

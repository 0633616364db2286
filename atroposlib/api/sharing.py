"""How the environments of a run share its batches: who takes part, minimum shares, GET /status-env."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atroposlib.config.api import ApiSettings
from atroposlib.store.protocol import EnvQueue, EnvRecord, RunState, StoreStats

MIN_ENV_WEIGHT = 0.01
"""No environment is told a smaller share, so none stops altogether."""


def find_env(run: RunState, env_id: int | None) -> EnvRecord | None:
    """The environment of an id, or None; a negative id is nobody's."""
    if env_id is None or not 0 <= env_id < len(run.envs):
        return None
    return run.envs[env_id]


def connected(run: RunState, settings: ApiSettings, now: float) -> list[EnvRecord]:
    """The environments that take part: registered, not left, not silent."""
    return [env for env in run.envs if not env.left and now - env.last_seen < settings.env_silent_s]


def minimums(run: RunState, settings: ApiSettings, sequences: int, now: float) -> dict[int, int]:
    """Sequences that each delivering environment has to get of the next batch of ``sequences``.

    Environments that are gone or idle are left out, so they cannot hold up the present; shares that sum to
    more than the whole are scaled down.
    """
    shares = {
        env.env_id: env.registration.min_batch_allocation or 0.0
        for env in connected(run, settings, now)
        if now - env.last_group < settings.minimum_idle_s
    }
    scale = sequences / max(1.0, sum(shares.values()))
    counts = {env_id: int(share * scale) for env_id, share in shares.items()}
    return {env_id: count for env_id, count in counts.items() if count > 0}


def env_weight(env: EnvRecord | None, present: Sequence[EnvRecord]) -> float:
    """An environment's share of the run: its weight times its context length among all connected ones.

    When nobody has a positive weight all share equally. An environment that the API does not know (it was
    restarted) goes on as if it were alone.
    """
    if env is None:
        return 1.0
    total = sum(_claim(other) for other in present)
    if total <= 0:
        return 1.0 / max(1, len(present))
    return min(1.0, max(MIN_ENV_WEIGHT, _claim(env) / total))


def unallocated_fraction(present: Sequence[EnvRecord]) -> float:
    """The part of a batch that no connected environment's ``min_batch_allocation`` claims."""
    return 1.0 - min(1.0, sum(env.registration.min_batch_allocation or 0.0 for env in present))


def status_env(
    env_id: int,
    env: EnvRecord | None,
    present: Sequence[EnvRecord],
    stats: StoreStats,
    batch_size: int,
) -> dict[str, float | int]:
    """The figures by which an environment decides how much more to produce.

    Args:
        env_id: Who asks, known or not.
        env: Its record, None when the API does not know it.
        present: All environments that take part now.
        stats: The store's.
        batch_size: Sequences of a batch, 0 before a trainer registered.

    Returns:
        ``queue_size`` and ``self_queue_size`` in groups of the asker's size, ``unallocated_fraction``,
        ``max_group_size`` of the whole queue in sequences, ``env_weight``.
    """
    largest = max((queue.largest for queue in stats.by_env.values()), default=1)
    own = stats.by_env.get(env_id, EnvQueue())
    group_size = max(1, own.largest, env.registration.group_size if env else largest)
    queued = _others_sequences(env_id, present, stats, batch_size, largest)
    return {
        "queue_size": (own.sequences + queued) // group_size,
        "unallocated_fraction": unallocated_fraction(present),
        "self_queue_size": own.sequences // group_size,
        "max_group_size": largest,
        "env_weight": env_weight(env, present),
    }


@dataclass(frozen=True, slots=True)
class NoBatch:
    """Why no batch could be formed.

    Attributes:
        why: In words.
        stuck: More of the same groups will not help, so somebody has to change a size.
    """

    why: str
    stuck: bool = False


def why_no_batch(stats: StoreStats, sequences: int, least: Mapping[int, int]) -> NoBatch:
    """Why the store gave no batch.

    Args:
        stats: The store's.
        sequences: Size of the batch that was asked for.
        least: Minimums as the store's ``lease`` was given them.
    """
    if stats.queued_sequences < sequences:
        return NoBatch(f"{stats.queued_sequences} of {sequences} sequences are queued")
    for env_id, wanted in least.items():
        has = stats.by_env.get(env_id, EnvQueue()).sequences
        if has < wanted:
            return NoBatch(f"environment {env_id} has {has} of the {wanted} sequences of its minimum share")
    queued = f"{stats.queued} groups ({stats.queued_sequences} sequences) queued"
    return NoBatch(f"{queued}, none add up to a batch of {sequences}", stuck=True)


def _others_sequences(
    env_id: int, present: Sequence[EnvRecord], stats: StoreStats, batch_size: int, largest: int
) -> int:
    """what others have queued, each in whole groups of the largest size, beyond its own minimum share."""
    if largest == 1:
        return 0
    least: dict[int | None, int] = {
        env.env_id: int(batch_size * (env.registration.min_batch_allocation or 0.0)) for env in present
    }
    return sum(
        max(0, math.ceil(queue.sequences / largest) * largest - least.get(other, 0))
        for other, queue in stats.by_env.items()
        if other != env_id
    )


def _claim(env: EnvRecord) -> float:
    return max(0, env.registration.max_token_length) * max(0.0, env.registration.weight)

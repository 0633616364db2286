"""Groups, registrations and questions that the stores' tests are made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from atroposlib.errors import AtroposError
from atroposlib.store.protocol import GroupStore, Lease, LeaseRequest, StoreStats
from atroposlib.wire.posted import GroupFacts, PostedGroup
from atroposlib.wire.registrations import EnvRegistration, Registration

OpenStore = Callable[..., Awaitable[GroupStore]]


def group(
    name: str,
    sequences: int = 4,
    env_id: int | None = 0,
    payload: bytes = b"{}",
    *,
    policy_version: int | None = None,
    digest: str | None = None,
) -> PostedGroup:
    """A posted group; stores never look into its bytes."""
    facts = GroupFacts(name, env_id, sequences, policy_version, "json", len(payload), digest)
    return PostedGroup(facts, payload)


def registration(**changes: Any) -> Registration:
    """What a trainer registers."""
    values = {
        "wandb_group": "group",
        "wandb_project": "project",
        "batch_size": 8,
        "max_token_len": 128,
        "checkpoint_dir": "/checkpoints",
        "save_checkpoint_interval": 10,
        "starting_step": 0,
        "num_steps": 100,
    }
    return Registration(**(values | changes))


def env_registration(**changes: Any) -> EnvRegistration:
    """What an environment registers."""
    values = {"max_token_length": 128, "desired_name": "env", "weight": 1.0, "group_size": 4}
    return EnvRegistration(**(values | changes))


def asks(
    trainer_id: str = "t",
    sequences: int = 8,
    lease_s: float = 10.0,
    minimums: dict[int, int] | None = None,
) -> LeaseRequest:
    """A trainer's question for a batch."""
    return LeaseRequest(trainer_id, sequences, lease_s, minimums or {})


def names(lease: Lease | None) -> list[str]:
    """The groups of a batch that must be there."""
    assert lease is not None
    return [facts.group_id for facts in lease.groups]


async def put(store: GroupStore, *group_ids: str, now: float = 0.0) -> None:
    """Post groups that must all be new."""
    answers = await store.put([group(name) for name in group_ids], now)
    assert [answer.group_id for answer in answers if answer.new] == list(group_ids)


async def leased(store: GroupStore, now: float = 0.0, **changes: Any) -> Lease:
    """A batch that must be there."""
    lease = await store.lease(asks(**changes), now)
    assert lease is not None
    return lease


async def refused(call: Awaitable[Any]) -> str:
    """The code with which a call is refused."""
    with pytest.raises(AtroposError) as caught:
        await call
    return caught.value.code


def conserved(stats: StoreStats) -> bool:
    """Whether every received group is in exactly one place."""
    places = stats.queued + stats.leased + stats.trained + sum(stats.dropped.values()) + stats.dead
    return stats.received == places

"""A validated group as a store keeps it: its encoded bytes, and the few facts the queue needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PostedGroup:
    """One group, validated and encoded once.

    Attributes:
        group_id: Idempotency key; made by the API when the poster gave none.
        env_id: Environment that posted it, or None.
        sequences: Number of sequences G.
        policy_version: Version of the student's weights that sampled it, or None.
        payload: The group as a JSON object, spliced undecoded into answers.
    """

    group_id: str
    env_id: int | None
    sequences: int
    policy_version: int | None
    payload: bytes

"""A validated group as a store keeps it: its encoded bytes, and the few facts the queue needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Format = Literal["json", "frame"]


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What a queue knows of a group without its bytes.

    Attributes:
        group_id: Idempotency key; made by the API when the poster gave none.
        env_id: Environment that posted it, or None.
        sequences: Number of sequences G.
        policy_version: Version of the student's weights that sampled it, or None.
        format: How its bytes are encoded.
        size: Number of its bytes.
        digest: Of environment and body, when the poster gave no ``group_id``: tells a repeated post.
    """

    group_id: str
    env_id: int | None
    sequences: int
    policy_version: int | None
    format: Format
    size: int
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class PostedGroup:
    """One group, validated and encoded once.

    Attributes:
        facts: What the queue looks at.
        payload: The bytes as they were posted (a frame) or as they are spliced into answers (JSON).
    """

    facts: GroupFacts
    payload: bytes

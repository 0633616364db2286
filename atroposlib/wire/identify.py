"""Gives a group that came in its identity: the poster's id, or a new one and a digest of what was posted."""

from __future__ import annotations

import hashlib
import uuid

from atroposlib.wire.posted import Format, GroupFacts, PostedGroup


def posted_group(
    payload: bytes,
    group_format: Format,
    *,
    group_id: str | None,
    env_id: int | None,
    sequences: int,
    policy_version: int | None,
) -> PostedGroup:
    """A validated group with its facts.

    Args:
        payload: Its bytes.
        group_format: How they are encoded.
        group_id: What the poster calls it; None makes an id and a digest, which tells a repeated post.
        env_id: Its environment.
        sequences: Number of its sequences G.
        policy_version: Version of the student's weights that sampled it.
    """
    digest = None
    if group_id is None:
        group_id = uuid.uuid4().hex
        digest = hashlib.sha256(f"{env_id}:".encode() + payload).hexdigest()
    facts = GroupFacts(group_id, env_id, sequences, policy_version, group_format, len(payload), digest)
    return PostedGroup(facts, payload)

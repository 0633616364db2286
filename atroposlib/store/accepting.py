"""Operations on single groups: accept them, and drop those that no batch will hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import chain, islice

from atroposlib.errors import ApiError
from atroposlib.store.ledger import DIGEST_S, DROPPED, Ledger
from atroposlib.store.protocol import LARGER_THAN_BATCH, POLICY_LAG, Accepted
from atroposlib.store.records import Change, Counted, EnvChanged, GroupAdded, GroupSettled, Held, Planned
from atroposlib.wire.posted import GroupFacts, PostedGroup

DROPPED_AT_ONCE = 500
"""Groups dropped in one operation, so that none takes long."""


def put(
    ledger: Ledger, posted: Sequence[PostedGroup], now: float, settled: Container[str]
) -> Planned[list[Accepted]]:
    """Accept groups; see :meth:`GroupStore.put`. ``settled`` holds ids of groups that are no longer kept."""
    fresh: dict[str, PostedGroup] = {}
    digests: dict[str | None, str] = {}
    answers = []
    for group in posted:
        facts = group.facts
        if facts.group_id in fresh or facts.group_id in settled:
            first: str | None = facts.group_id
        else:
            first = _known_as(ledger, facts, now) or digests.get(facts.digest)
        answers.append(Accepted(first or facts.group_id, new=first is None))
        if first is None:
            fresh[facts.group_id] = group
            if facts.digest is not None:
                digests[facts.digest] = facts.group_id
    if fresh and (len(ledger.groups) >= ledger.max_groups or ledger.held_bytes >= ledger.max_bytes):
        raise _queue_full(ledger)
    return answers, _accept(ledger, list(fresh.values()), len(posted) - len(fresh), now)


def drop_unusable(ledger: Ledger, sequences: int, now: float) -> Planned[int]:
    """Drop queued groups that are larger than a batch or too old for the run; returns how many (a part)."""
    registration = ledger.run.registration
    lag = registration.max_policy_lag if registration is not None else None
    # Who asks for fewer sequences than the run's batches have must not destroy what the others need.
    largest = sequences if registration is None else max(sequences, registration.batch_size)
    too_old = () if lag is None else ledger.queue.older_than(ledger.run.step - lag)
    unusable = chain(
        ((held, LARGER_THAN_BATCH) for held in ledger.queue.larger_than(largest)),
        ((held, POLICY_LAG) for held in too_old if held.facts.sequences <= largest),
    )
    chosen = list(islice(unusable, DROPPED_AT_ONCE))
    changes: list[Change] = [GroupSettled(held, now, dropped=True) for held, _ in chosen]
    reasons = Counter(reason for _, reason in chosen)
    changes += [Counted(DROPPED + reason, count) for reason, count in reasons.items()]
    return len(chosen), changes


def _known_as(ledger: Ledger, facts: GroupFacts, now: float) -> str | None:
    """The id under which a group is known already, or None."""
    if facts.group_id in ledger.groups:
        return facts.group_id
    if facts.digest is None:
        return None
    group_id, at = ledger.digests.get(facts.digest, (None, 0.0))
    # Also when the clock was set back: else no equal body would be taken until it has caught up.
    return group_id if abs(now - at) < DIGEST_S else None


def _accept(ledger: Ledger, fresh: Sequence[PostedGroup], duplicates: int, now: float) -> list[Change]:
    changes: list[Change] = [
        GroupAdded(Held(group.facts, ledger.next_arrival + index, now), group.payload)
        for index, group in enumerate(fresh)
    ]
    for env_id, count in Counter(group.facts.env_id for group in fresh).items():
        if env_id is not None and 0 <= env_id < len(ledger.envs):
            env = ledger.envs[env_id]
            received = env.groups_received + count
            env = replace(env, last_seen=now, last_group=now, left=False, groups_received=received)
            changes.append(EnvChanged(env))
    counts = {"received": len(fresh), "duplicates": duplicates}
    return changes + [Counted(name, count) for name, count in counts.items() if count]


def _queue_full(ledger: Ledger) -> ApiError:
    uncommitted = Counter[str]()
    for batch in ledger.by_state["acked"].values():
        uncommitted[batch.trainer_id] += len(batch.group_ids)
    fix = "repeat the request later"
    for trainer_id, groups in uncommitted.most_common(1):
        if groups * 2 > len(ledger.groups):
            fix = (
                f"{groups} of these groups are trained but not committed by trainer {trainer_id!r}: let it "
                "save a checkpoint, or forget it if it will not come back"
            )
    return ApiError(
        "the queue is full",
        code="api.queue_full",
        got=f"{len(ledger.groups)} groups, {ledger.held_bytes} bytes",
        expected=f"less than {ledger.max_groups} groups, {ledger.max_bytes} bytes",
        fix=fix,
    )

"""Which queued groups make the next batch: exactly full, oldest first, minimum shares kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar

MAX_CANDIDATES = 4096
MAX_TABLE_BITS = 1 << 27
"""The search for an exact fill keeps one bit for each candidate and sum: at most 16 MiB."""


class Sized(Protocol):
    """A queued group, as far as batch forming looks at it."""

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        ...

    @property
    def env_id(self) -> int | None:
        """Environment that posted it."""
        ...


Group = TypeVar("Group", bound=Sized)


def form_batch(queue: Collection[Group], sequences: int, minimums: Mapping[int, int]) -> list[Group] | None:
    """Choose groups that hold exactly ``sequences`` sequences together.

    Args:
        queue: Queued groups, oldest first.
        sequences: Size of the batch.
        minimums: Sequences that an environment has to get in this batch, rounded up to whole groups. While
            one of them has less than that queued there is no batch. A minimum yields when no exact batch
            exists with it.

    Returns:
        The chosen groups, oldest first, or None. Of all exact fills it is the one with the oldest group,
        then the next oldest, and so on; a group that does not fit stays in the queue.
    """
    if not minimums:
        return exact_fill(queue, sequences)
    queued = Counter[int | None]()
    for group in queue:
        queued[group.env_id] += group.sequences
    if any(queued[env_id] < minimum for env_id, minimum in minimums.items()):
        return None
    reserved = _reserve(queue, sequences, minimums)
    places = {id(group) for group in reserved}
    others = [group for group in queue if id(group) not in places]
    rest = exact_fill(others, sequences - sum(group.sequences for group in reserved))
    if rest is None:
        return exact_fill(queue, sequences)
    places |= {id(group) for group in rest}
    return [group for group in queue if id(group) in places]


def exact_fill(queue: Collection[Group], room: int) -> list[Group] | None:
    """The oldest-first choice of groups whose sizes sum to ``room``, or None when there is none."""
    chosen, left = [], room
    for group in queue:
        if left == 0:
            break
        if group.sequences <= left:
            chosen.append(group)
            left -= group.sequences
    # Taking the oldest that fits is the wanted order already; only a gap at the end needs a search.
    if left == 0:
        return chosen
    return _search_fill(_candidates(queue, room), room)


def _reserve(queue: Collection[Group], room: int, minimums: Mapping[int, int]) -> list[Group]:
    missing: dict[int | None, int] = dict(minimums.items())
    reserved = []
    for group in queue:
        if missing.get(group.env_id, 0) > 0 and group.sequences <= room:
            reserved.append(group)
            missing[group.env_id] -= group.sequences
            room -= group.sequences
    return reserved


def _candidates(queue: Collection[Group], room: int) -> list[Group]:
    """The groups that can matter: of each size no more than fit into the room, bounded in number."""
    limit = min(MAX_CANDIDATES, MAX_TABLE_BITS // (room + 1))
    taken = Counter[int]()
    candidates: list[Group] = []
    for group in queue:
        if len(candidates) == limit:
            break
        if (taken[group.sequences] + 1) * group.sequences <= room:
            taken[group.sequences] += 1
            candidates.append(group)
    return candidates


def _search_fill(candidates: Sequence[Group], room: int) -> list[Group] | None:
    # reachable[i] has bit s set when some of candidates[i:] sum to s.
    mask = (1 << (room + 1)) - 1
    reachable = [1]
    for group in reversed(candidates):
        reachable.append((reachable[-1] | reachable[-1] << group.sequences) & mask)
    reachable.reverse()
    if not reachable[0] >> room & 1:
        return None
    chosen, left = [], room
    for index, group in enumerate(candidates):
        if group.sequences <= left and reachable[index + 1] >> (left - group.sequences) & 1:
            chosen.append(group)
            left -= group.sequences
    return chosen

"""Groups that go back to the loop with what was sampled, to be completed again, a bounded number of times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.types import ScoredDataGroup


class Requeues:
    """Which groups may go back, how often each has, and which wait for their worker to end.

    Only a group that a worker of the loop holds can go back: any other would be lost.
    """

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._waiting: dict[str, Exception] = {}
        self._times: Counter[str] = Counter()

    def hold(self, groups: Sequence[ScoredDataGroup]) -> None:
        """A worker takes these groups, and takes them back if they are asked for."""
        self._held.update(str(group["group_id"]) for group in groups)

    def ask(self, group: Mapping[str, Any], error: Exception, most: int) -> bool:
        """Let a group go back because of ``error``; False when it cannot, or has done so ``most`` times."""
        name = str(group.get("group_id"))
        if name not in self._held or self._times[name] >= most:
            return False
        self._times[name] += 1
        self._waiting[name] = error
        return True

    def take(self, groups: Sequence[ScoredDataGroup]) -> list[tuple[ScoredDataGroup, Exception]]:
        """Those of a worker's groups that go back, each with its reason; the worker holds none any more."""
        names = [str(group.get("group_id")) for group in groups]
        self._held.difference_update(names)
        waiting = [self._waiting.pop(name, None) for name in names]
        return [(group, error) for group, error in zip(groups, waiting, strict=True) if error is not None]

    def forget(self, group: Mapping[str, Any]) -> None:
        """The group was handed over or dropped."""
        self._times.pop(str(group.get("group_id")), None)

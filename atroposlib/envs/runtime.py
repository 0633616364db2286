"""What an environment owns beside its settings: the API client, the sender, the journal, the counters."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.config.env import BaseEnvConfig
from atroposlib.envs.api_client import TrajectoryApi
from atroposlib.envs.counters import Counters
from atroposlib.envs.requeues import Requeues
from atroposlib.envs.sender import Sender
from atroposlib.errors import ApiError
from atroposlib.journal import Journal
from atroposlib.types import ScoredDataGroup

logger = logging.getLogger(__name__)


class Runtime:
    """The long-lived parts of one environment, and the books of what became of every group.

    A group is *settled* once it was handed over to the sender or dropped; what is not settled when its
    worker ends goes back to the backlog.
    """

    def __init__(self, config: BaseEnvConfig) -> None:
        self.api = TrajectoryApi(config.rollout_server_url)
        self.sender = Sender(
            self.api,
            on_dropped=lambda group, reason: self.drop(reason, group),
            on_masked=self.count_masked,
            logprob_dtype=config.logprob_dtype,
        )
        # One that the API has not seen: a registration that is repeated finds its first one again.
        self.identity = config.identity or uuid.uuid4().hex
        self.journal = Journal(config.journal_path)
        self.counters = Counters()
        self.requeues = Requeues()
        self._tell_every = max(1, config.min_items_sent_before_logging)
        self._settled: set[str] = set()

    def settle(self, group: Mapping[str, Any]) -> None:
        """Note that a group needs its worker no longer."""
        self.requeues.forget(group)
        if group.get("group_id"):
            self._settled.add(group["group_id"])

    def count_sent(self, group: ScoredDataGroup) -> None:
        """Count a group as sent."""
        self.counters.sent += 1
        self.counters.sequences += len(group["tokens"])
        self._tell_progress()

    def count_masked(self, group: Mapping[str, Any], masked: Counter[str]) -> None:
        """Count what of a group was left out before it was sent."""
        self.counters.masked.update(masked)
        self.journal.write("targets_masked", group_id=group.get("group_id"), **masked)

    def drop(self, reason: str, group: Mapping[str, Any] | None = None) -> None:
        """Count a group (or an item that gave none) as dropped, and settle it."""
        self.counters.dropped[reason] += 1
        sequences = len((group or {}).get("tokens") or [])
        self.journal.write("group_dropped", reason=reason, sequences=sequences)
        logger.debug("group dropped: %s", reason)
        if group is not None:
            self.settle(group)
        self._tell_progress()

    def requeue(self, reason: str, group: Mapping[str, Any], error: Exception, most: int) -> bool:
        """Let a group go back to the loop, to be completed again; counted.

        Returns:
            False when it was so ``most`` times already, or when no loop waits for it; then drop it.
        """
        if not self.requeues.ask(group, error, most):
            return False
        self.counters.requeued[reason] += 1
        self.journal.write("group_requeued", group_id=group.get("group_id"), reason=reason)
        return True

    def _tell_progress(self) -> None:
        if (self.counters.sent + self.counters.dropped.total()) % self._tell_every == 0:
            logger.info("%s", self.counters.line())

    def take_unsettled(self, groups: Sequence[ScoredDataGroup] | None) -> list[ScoredDataGroup] | None:
        """The groups of a finished worker that are not settled; None when none were collected yet."""
        if groups is None:
            return None
        left = [group for group in groups if group.get("group_id") not in self._settled]
        self._settled.difference_update(str(group.get("group_id")) for group in groups)
        return left

    async def disconnect(self, env_id: int | None) -> None:
        """Tell the API that this environment ends; an API that is away cannot be told."""
        if env_id is None:
            return
        try:
            await self.api.post("/disconnect-env", {"env_id": env_id})
        except ApiError as error:
            logger.info("could not say goodbye: %s", error)

    async def close(self) -> None:
        """Let posts under way finish for a moment, then close the session."""
        await self.sender.close()
        await self.api.close()

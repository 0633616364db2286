"""The rollout loop: keeps as many items in work as the queue allows, and loses none of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atroposlib.envs.collect import collect_groups
from atroposlib.envs.limits import worker_limit
from atroposlib.envs.registration import Waiting, status_after_outage
from atroposlib.envs.steps import on_status
from atroposlib.envs.tasks import cancel_all
from atroposlib.envs.telling import one_line
from atroposlib.errors import ApiError, AtroposError, RunError
from atroposlib.types import Item, ScoredDataGroup

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
MOST_ATTEMPTS = 3
MOST_FAILURES_IN_A_ROW = 100
LONGEST_OUTAGE_PAUSE_SECONDS = 30.0

NO_GROUP = "no_group"
ROLLOUT_FAILED = "rollout_failed"
WORKER_TIMEOUT = "worker_timeout"


@dataclass(eq=False)
class Work:
    """An item on its way to groups that are handed over.

    Attributes:
        item: What ``get_next_item`` gave.
        attempts: Failures so far; a cancelled worker is none.
        groups: Collected groups that are not handed over yet; None before sampling.
        as_list: The environment returned its groups as a list.
    """

    item: Item
    attempts: int = 0
    groups: list[ScoredDataGroup] | None = None
    as_list: bool = False


class RolloutLoop:
    """Owns the workers of an environment and the backlog of its items."""

    def __init__(self, env: BaseEnv) -> None:
        self._env = env
        self.backlog: deque[Work] = deque()
        self.workers: dict[asyncio.Task[None], Work] = {}
        self._failures_in_a_row = 0
        self._outages = 0
        self._paused_until = 0.0
        self._fatal: RunError | None = None

    async def run(self) -> None:
        """Work until the trainer has reached ``total_steps``.

        Raises:
            RunError: Every one of the last 100 workers failed.
        """
        try:
            while True:
                await self._poll()
                if self._fatal is not None:
                    raise self._fatal
                if self._is_finished():
                    return
                await self._fill()
                await self._wait()
        finally:
            await self.cancel_workers()

    async def cancel_workers(self) -> None:
        """Cancel all workers; their items and collected groups are back in the backlog afterwards."""
        await cancel_all(list(self.workers))

    def _is_finished(self) -> bool:
        total = self._env.config.total_steps
        return total > 0 and self._env.curr_step >= total

    async def _poll(self) -> None:
        env = self._env
        try:
            env.status_dict = await env.runtime.api.get("/status-env", {"env_id": env.env_id})
            if env.status_dict["current_step"] < env.curr_step:
                # A restarted API counts anew, and may have answered for another environment of this id.
                env.status_dict = await self._recover()
        except ApiError as error:
            logger.warning("lost the trajectory API; workers go on, their groups wait: %s", error)
            env.status_dict = await self._recover()
            logger.info("the trajectory API is back; this environment has id %s", env.env_id)
        if await on_status(env):
            await self.cancel_workers()

    async def _recover(self) -> dict[str, Any]:
        """The status once the API answers again; registers anew with an API that has forgotten us."""
        env = self._env
        waiting = Waiting()
        while True:
            status = await status_after_outage(env.runtime.api, env.env_id, env.wandb_prepend)
            if status is not None:
                return status
            await waiting.pause("the trajectory API does not know this environment; registering again")
            await env.register_env()
            await env.get_server_info()

    async def _wait(self) -> None:
        """Until a worker ends, but no longer than the time between two status calls."""
        if self.workers:
            await asyncio.wait(self.workers, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(POLL_SECONDS)

    async def _fill(self) -> None:
        env = self._env
        limit = worker_limit(
            env.config,
            env.status_dict,
            max_workers=env.max_num_workers,
            derived_batch_size=env.derived_batch_size,
            evaluating=env.is_evaluating,
        )
        if env.runtime.sender.is_blocked:
            # The queue is full beyond what its size tells: rollouts and teachers would work for the shelf.
            return
        # Work above a limit that has fallen is finished, not thrown away: the limit holds at every start.
        while len(self.workers) < limit and time.monotonic() >= self._paused_until:
            work = self.backlog.popleft() if self.backlog else await self._next_work()
            if work is None:
                return
            worker = asyncio.create_task(self._work(work))
            self.workers[worker] = work
            worker.add_done_callback(self._worker_ended)

    async def _next_work(self) -> Work | None:
        item = await self._env.get_next_item()
        return None if item is None else Work(item)

    async def _work(self, work: Work) -> None:
        env = self._env
        seconds = env.config.worker_timeout
        async with asyncio.timeout(seconds if seconds > 0 else None):
            if work.groups is None:
                groups, as_list, handed_back = await collect_groups(env, work.item)
                work.groups, work.as_list = groups, as_list
                self.backlog.extend(Work(item) for item in handed_back)
                if not groups:
                    env.runtime.drop(NO_GROUP)
            if work.groups:
                env.runtime.requeues.hold(work.groups)
                payload = work.groups if work.as_list else work.groups[0]
                await env.handle_send_to_api(payload, work.item)
        await env.cleanup()

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """Book what a worker has done. A callback, as a task cancelled before its first step runs no code."""
        work = self.workers.pop(worker)
        error = None if worker.cancelled() else worker.exception()
        requeued = self._env.runtime.requeues.take(work.groups or [])
        left = self._env.runtime.take_unsettled(work.groups)
        if worker.cancelled():
            if left is None or left:
                work.groups = left
                self.backlog.appendleft(work)
            return
        if error is None and requeued:
            self._requeue(work, requeued)
            return
        if error is None:
            self._env.last_completed_item = work.item
            self._failures_in_a_row = self._outages = 0
            return
        logger.debug("worker failed", exc_info=error)
        if left is None or left:
            work.groups = left
            self._retry(work, error)
        else:
            logger.warning("after its groups were handed over, a worker failed: %s", one_line(error))

    def _requeue(self, work: Work, requeued: Sequence[tuple[ScoredDataGroup, Exception]]) -> None:
        """Put groups that could not be completed yet behind all others; their count is bounded elsewhere."""
        work.groups = [group for group, _ in requeued]
        self.backlog.append(work)
        outage = next((error for _, error in requeued if _is_outage(error)), None)
        if outage is not None:
            self._pause_for_outage(outage)

    def _retry(self, work: Work, error: BaseException) -> None:
        # A request that ran out of time may do so every time, so it costs an attempt; an outage costs none.
        if _is_outage(error):
            self._pause_for_outage(error)
            self.backlog.appendleft(work)
            return
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            self._fatal = RunError(
                f"the last {self._failures_in_a_row} workers failed",
                where=type(self._env).__name__,
                got=one_line(error),
            )
        work.attempts += 1
        if work.attempts < MOST_ATTEMPTS:
            logger.warning("attempt %d of %d failed: %s", work.attempts, MOST_ATTEMPTS, one_line(error))
            self._env.runtime.counters.retried += 1
            self.backlog.append(work)
            return
        reason = WORKER_TIMEOUT if isinstance(error, TimeoutError) else ROLLOUT_FAILED
        logger.warning("item dropped after %d attempts: %s", work.attempts, one_line(error))
        if not work.groups:
            self._env.runtime.drop(reason)
        for group in work.groups or []:
            self._env.runtime.drop(reason, group)

    def _pause_for_outage(self, error: BaseException) -> None:
        """A server that is away costs no item an attempt; new workers wait for it, and one line says so."""
        now = time.monotonic()
        if now < self._paused_until:
            return
        if self._outages == 0:
            logger.warning("no new work for now: %s", error)
        self._paused_until = now + min(2.0**self._outages, LONGEST_OUTAGE_PAUSE_SECONDS)
        self._outages = min(self._outages + 1, 10)


def _is_outage(error: BaseException) -> bool:
    """Whether a server is away or another one than before, rather than slow or unwilling."""
    if not isinstance(error, AtroposError):
        return False
    return error.servers_at_fault or (error.code.endswith(".unreachable") and not error.timed_out)

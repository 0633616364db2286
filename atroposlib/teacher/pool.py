"""Gives each question its turn at the least loaded server of a teacher that is fit to be asked."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from atroposlib.errors import AtroposError, TeacherError
from atroposlib.teacher.joining import Joining
from atroposlib.teacher.persistence import Deadline, Passing
from atroposlib.teacher.replica import Replica

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Waiter:
    """A question that waits for its turn.

    Attributes:
        tokens: How many it has.
        refused: Servers that it must not go to.
        deadline: Its clock, which stands still while a server is fit and busy with others.
        turn: Is given the server.
    """

    tokens: int
    refused: set[Replica]
    deadline: Deadline
    turn: asyncio.Future[Replica] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ReplicaPool:
    """The servers of one teacher, the questions that wait for them, and the tasks that try them out again.

    Args:
        name: Name of the teacher, for people.
        replicas: Its servers.
        tokens_in_flight: Most tokens that one of them works on at once.
        try_out: Tries a server with something small. Raises Passing, or TeacherError when it is at fault.
        on_aside: Is told of an error that sets a server aside.

    Attributes:
        replicas: The servers.
        most_tokens: As ``tokens_in_flight``; a question of so many goes alone.
    """

    def __init__(
        self,
        name: str,
        replicas: Sequence[Replica],
        *,
        tokens_in_flight: int,
        try_out: Callable[[Replica], Awaitable[None]],
        on_aside: Callable[[AtroposError], None],
    ) -> None:
        self.replicas = list(replicas)
        self._name = name
        self.most_tokens = tokens_in_flight
        self._try_out = try_out
        self._on_aside = on_aside
        self._turns = 0
        self._queue: deque[Waiter] = deque()
        self._recoveries: dict[Replica, asyncio.Task[None]] = {}
        self._trials: Joining[None] = Joining()

    @asynccontextmanager
    async def turn(self, tokens: int, refused: set[Replica], deadline: Deadline) -> AsyncIterator[Replica]:
        """A server that is not in ``refused``, for a question of so many tokens.

        Raises:
            AtroposError: Why the last of these servers is set aside, when all of them are.
        """
        waiter = Waiter(tokens, refused, deadline)
        self._queue.append(waiter)
        try:
            self._serve()
            self._review(waiter)
            replica = await waiter.turn
        except BaseException:
            self._withdraw(waiter)
            raise
        finally:
            deadline.go()
        try:
            yield replica
        finally:
            replica.give_back(tokens)
            self._serve()

    def _withdraw(self, waiter: Waiter) -> None:
        turn = waiter.turn
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            turn.result().give_back(waiter.tokens)
        turn.cancel()
        # Others may have waited behind it, or for what it had been given.
        self._serve()

    def elsewhere(self, refused: set[Replica]) -> bool:
        """Whether a server that is not in ``refused`` works, as far as is known."""
        return any(one.breaker.trouble is None for one in self.replicas if one not in refused)

    # --- the queue ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Give turns in order of arrival; nobody overtakes who waits for the same server."""
        awaited: set[Replica] = set()
        waiting = []
        while self._queue and len(awaited) < len(self.replicas):
            waiter = self._queue.popleft()
            if not self._place(waiter, awaited):
                waiting.append(waiter)
                awaited.update(self._candidates(waiter))
        self._queue.extendleft(reversed(waiting))

    def _candidates(self, waiter: Waiter) -> list[Replica]:
        return [replica for replica in self.replicas if replica not in waiter.refused]

    def _place(self, waiter: Waiter, awaited: set[Replica]) -> bool:
        """Whether the waiter has its turn now, at a server that nobody waits for, or has no need of one."""
        if waiter.turn.done():
            return True
        candidates = self._candidates(waiter)
        for replica in candidates:
            if not replica.ready:
                self._start_recovery(replica)
        free = [
            one
            for one in candidates
            if one.ready and one not in awaited and one.has_room(waiter.tokens, self.most_tokens)
        ]
        if free:
            # Of equally loaded ones the one whose last turn is longest ago.
            chosen = min(free, key=lambda one: (one.tokens, one.last_turn))
            self._turns += 1
            chosen.take(waiter.tokens, self._turns)
            waiter.turn.set_result(chosen)
        return waiter.turn.done()

    def trouble(self, replicas: Sequence[Replica]) -> AtroposError:
        """The last failure of one of ``replicas``."""
        return max(replicas, key=lambda replica: replica.breaker.failed_at).trouble

    def _review(self, waiter: Waiter) -> None:
        """Stop its clock while a server is fit and busy; tell it when all of its servers are set aside."""
        candidates = self._candidates(waiter)
        if not waiter.turn.done() and all(one.breaker.state == "aside" for one in candidates):
            trouble = self.trouble(candidates)
            trouble.servers_at_fault = len(candidates) == len(self.replicas)
            waiter.turn.set_exception(trouble)
        if waiter.turn.done() or not any(one.ready for one in candidates):
            waiter.deadline.go()
        else:
            waiter.deadline.stop()

    def _update(self) -> None:
        """The state of a server has changed."""
        self._serve()
        for waiter in self._queue:
            self._review(waiter)

    # --- the state of servers -----------------------------------------------------------------------------

    def suspect(self, replica: Replica, failure: Passing) -> None:
        """Ask ``replica`` nothing more until it was tried out."""
        if replica.breaker.state == "closed":
            logger.info("teacher %s: a server is not asked until it has recovered: %s", self._name, failure)
        if failure.kind != "busy":
            replica.way = None
        replica.breaker.open(failure.error)
        self._start_recovery(replica)
        self._update()

    def set_aside(self, replica: Replica, error: AtroposError) -> None:
        """The same for long, since the server is at fault."""
        before = replica.breaker.trouble
        replica.way = None
        replica.breaker.set_aside(error)
        self._on_aside(error)
        if before is None or before.code != error.code:
            logger.warning("teacher %s: a server is set aside: %s", self._name, error)
        self._start_recovery(replica)
        self._update()

    async def proves_fit(self, replica: Replica) -> bool:
        """Whether ``replica`` is fit when it is tried out now."""
        await self._trials.run(replica, lambda: self._try(replica))
        return replica.breaker.state == "closed"

    def _start_recovery(self, replica: Replica) -> None:
        """Have a task try ``replica`` out until it is fit, if none does."""
        task = self._recoveries.get(replica)
        if task is None or task.done():
            task = self._recoveries[replica] = asyncio.create_task(self._recover(replica))
            task.add_done_callback(lambda done: self._recovered(replica, done))

    async def _recover(self, replica: Replica) -> None:
        """Try ``replica`` out, after growing pauses, until it is fit."""
        fit = False
        while not fit:
            await asyncio.sleep(replica.breaker.pause_s())
            fit = await self.proves_fit(replica)

    def _recovered(self, replica: Replica, task: asyncio.Task[None]) -> None:
        if self._recoveries.get(replica) is task:
            del self._recoveries[replica]
        if not task.cancelled() and (defect := task.exception()) is not None:
            for waiter in self._queue:
                if not waiter.turn.done():
                    waiter.turn.set_exception(defect)

    async def _try(self, replica: Replica) -> None:
        failed = replica.breaker.failures > 0
        replica.breaker.half_open()
        try:
            await self._try_out(replica)
        except Passing as failure:
            self.suspect(replica, failure)
        except TeacherError as error:
            if error.timed_out:
                self.suspect(replica, Passing(error, "busy"))
            else:
                self.set_aside(replica, error)
        else:
            # A request that failed meanwhile has opened it again.
            if replica.breaker.state == "half_open":
                replica.breaker.close()
                if failed:
                    logger.info("teacher %s: %s is asked again", self._name, replica.peer.root)
            self._update()

    async def close(self) -> None:
        """End all tasks; those who wait for a turn are cancelled."""
        for waiter in self._queue:
            waiter.turn.cancel()
        tasks = list(self._recoveries.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._trials.close()

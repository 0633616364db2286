"""The tries of one question over a teacher's servers: repeats, other servers, whose fault a failure is."""

from __future__ import annotations

import math

import aiohttp

from atroposlib.errors import AtroposError, TeacherError, TeacherUnreachable
from atroposlib.teacher.persistence import Deadline, Passing, persist
from atroposlib.teacher.pool import ReplicaPool
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.quarantine import Quarantine
from atroposlib.teacher.replica import Replica
from atroposlib.teacher.stats import TeacherStats
from atroposlib.types import TeacherScores

BAD_REPLIES = 3
"""Replies in a row that could not be used, after which a server is set aside while another one works."""


class Attempts:
    """Has one question answered.

    Args:
        question: The question.
        session: The teacher's session.
        pool: The teacher's servers.
        quarantine: Sequences that broke servers.
        stats: The teacher's counters.
    """

    def __init__(
        self,
        question: Question,
        session: aiohttp.ClientSession,
        pool: ReplicaPool,
        quarantine: Quarantine,
        stats: TeacherStats,
    ) -> None:
        self._question = question
        self._session = session
        self._pool = pool
        self._quarantine = quarantine
        self._stats = stats
        self._refused: set[Replica] = set()
        self._asked: Replica | None = None
        self._failure: AtroposError | None = None
        self._tries = 0

    async def run(self, patience_s: float) -> TeacherScores:
        """The answer.

        Args:
            patience_s: Seconds after which it is given up. The wait for a turn at servers that are fit, and
                busy with other questions, does not count.

        Raises:
            TeacherUnreachable: No server could be asked within ``patience_s``, or none answered.
            TeacherError: Refused, failed, quarantined, an answer that cannot be used, or no server left that
                is not set aside.
        """
        deadline = Deadline(patience_s)
        try:
            async with deadline:
                # The deadline alone ends it: a wait for a turn must not use up the patience.
                return await persist(lambda: self._try(deadline), patience_s=math.inf)
        except TimeoutError as late:
            if not deadline.passed:
                raise
            raise self._late(patience_s) from late

    async def _try(self, deadline: Deadline) -> TeacherScores:
        """One try, and more of them while an error is no reason to wait. Raises Passing where it is."""
        while True:
            self._quarantine.check(self._question.ids, f"teacher {self._stats.name}")
            tokens = len(self._question.ids)
            if self._quarantine.suspects(self._question.ids):
                tokens = max(tokens, self._pool.most_tokens)
            async with self._pool.turn(tokens, self._refused, deadline) as replica:
                self._stats.retries += self._tries > 0
                self._tries += 1
                try:
                    return await self._ask(replica)
                except TeacherError as error:
                    if not await self._may_pass(replica, error):
                        raise

    async def _ask(self, replica: Replica) -> TeacherScores:
        self._asked = replica
        try:
            scores = await replica.ask(self._session, self._question)
        except Passing as failure:
            if failure.kind == "broken":
                self._quarantine.blame(self._question.ids)
            if failure.kind != "interrupted":
                self._pool.suspect(replica, failure)
            self._asked, self._failure = None, failure.error
            raise
        self._quarantine.clear(self._question.ids)
        return scores

    async def _may_pass(self, replica: Replica, error: TeacherError) -> bool:
        """Whether another server, or this one later, may answer after this ``error`` of ``replica``."""
        self._asked, self._failure = None, error
        if error.timed_out:
            self._refused.add(replica)
            self._pool.suspect(replica, Passing(error, "busy"))
            return self._pool.elsewhere(self._refused)
        if error.code == "teacher.bad_reply":
            self._refused.add(replica)
            replica.bad_replies += 1
            elsewhere = self._pool.elsewhere(self._refused)
            if elsewhere and replica.bad_replies >= BAD_REPLIES:
                self._pool.set_aside(replica, error)
            return elsewhere
        if error.code == "teacher.refused":
            # What answers the canary refuses the question itself, and no other server will take it.
            return replica.breaker.state in ("open", "aside") or not await self._pool.proves_fit(replica)
        return False

    def _late(self, patience_s: float) -> AtroposError:
        if self._asked is None:
            if self._failure is not None and self._pool.elsewhere(self._refused):
                return self._failure
            return self._pool.trouble([one for one in self._pool.replicas if one not in self._refused])
        error = TeacherUnreachable(
            "the teacher server gave no answer in time",
            where=self._asked.peer.root,
            got=f"no answer after {patience_s:g} s",
            fix="raise the patience, or see whether the server is paused or overloaded",
        )
        error.timed_out = True
        self._pool.suspect(self._asked, Passing(error, "busy"))
        return error

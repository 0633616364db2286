"""Delivery of groups to the trajectory API: once handed over, a group is stored or its drop is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from atroposlib.envs.api_client import TrajectoryApi, encode
from atroposlib.envs.telling import one_line
from atroposlib.errors import ApiError
from atroposlib.types import ScoredDataGroup

if TYPE_CHECKING:
    from tenacity import RetryCallState

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 10.0
CLOSE_SECONDS = 5.0
MOST_FAILED_ATTEMPTS = 8

REFUSED = "api_refused"
FAILED = "api_failed"
NOT_DELIVERED = "not_delivered"
NOT_JSON = "not_json"


class Sender:
    """Posts groups; owns every post from the hand-over to its end, whoever waits for it.

    Args:
        api: Client of the trajectory API.
        on_dropped: Called with a group and a reason when the API did not take it.
    """

    def __init__(self, api: TrajectoryApi, on_dropped: Callable[[ScoredDataGroup, str], None]) -> None:
        self._api = api
        self._on_dropped = on_dropped
        self._posts: set[asyncio.Task[None]] = set()

    async def deliver(
        self,
        groups: list[ScoredDataGroup],
        *,
        as_list: bool,
        on_sent: Callable[[ScoredDataGroup], Awaitable[None]],
    ) -> None:
        """Post groups in one request; returns when they are stored or counted as dropped.

        A caller that is cancelled only stops waiting: the post goes on, so that a group is neither lost
        nor posted twice. ``on_sent`` is awaited for each group that the API took.
        """
        post = asyncio.create_task(self._deliver(groups, as_list, on_sent))
        self._posts.add(post)
        post.add_done_callback(self._ended)
        await asyncio.shield(post)

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Give posts that are under way this many seconds, then count their groups as not delivered."""
        if not self._posts:
            return
        _, late = await asyncio.wait(self._posts, timeout=seconds)
        for post in late:
            post.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, post: asyncio.Task[None]) -> None:
        self._posts.discard(post)
        error = None if post.cancelled() else post.exception()
        if error is not None:
            # Told here as well as raised, since a cancelled caller no longer waits for it.
            logger.error("a stored group could not be recorded: %s", one_line(error))

    async def _deliver(
        self,
        groups: list[ScoredDataGroup],
        as_list: bool,
        on_sent: Callable[[ScoredDataGroup], Awaitable[None]],
    ) -> None:
        try:
            reason = await self._post(groups, as_list)
        except asyncio.CancelledError:
            for group in groups:
                self._on_dropped(group, NOT_DELIVERED)
            raise
        if reason is None:
            await _report_sent(groups, on_sent)
            return
        for group in groups:
            self._on_dropped(group, reason)

    async def _post(self, groups: list[ScoredDataGroup], as_list: bool) -> str | None:
        """Post until the API takes the groups; the reason when it never will."""
        try:
            body, headers = await asyncio.to_thread(encode, groups if as_list else groups[0])
        except TypeError as error:
            logger.warning("group cannot be written as JSON: %s", error)
            return NOT_JSON
        # Imported here so that --help stays fast.
        from tenacity import AsyncRetrying, retry_if_exception, wait_random_exponential

        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception(_can_succeed_later),
                stop=_FailsTooOften(),
                wait=wait_random_exponential(multiplier=0.2, max=LONGEST_PAUSE_SECONDS),
                before_sleep=_tell_first_retry,
                reraise=True,
            ):
                with attempt:
                    await self._api.post("/scored_data_list" if as_list else "/scored_data", body, headers)
        except ApiError as error:
            logger.warning("%d group(s) dropped: %s", len(groups), error)
            return REFUSED if error.code == "api.refused" else FAILED
        return None


async def _report_sent(
    groups: list[ScoredDataGroup], on_sent: Callable[[ScoredDataGroup], Awaitable[None]]
) -> None:
    """Await ``on_sent`` for every group, also after it failed for one; the first failure is raised last."""
    failures: list[Exception] = []
    for group in groups:
        try:
            await on_sent(group)
        except Exception as error:  # noqa: BLE001 - raised below, once every stored group is recorded
            failures.append(error)
    if failures:
        raise failures[0]


def _can_succeed_later(error: BaseException) -> bool:
    """No answer, a 5xx answer, a full queue, or no trainer yet."""
    return isinstance(error, ApiError) and error.code != "api.refused"


class _FailsTooOften:
    """Gives up after several 5xx answers in a row: such a request would hold its worker for ever.

    An API that is away or full is waited for without limit.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def __call__(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        failed = isinstance(error, ApiError) and error.code == "api.failed"
        self._in_a_row = self._in_a_row + 1 if failed else 0
        return self._in_a_row >= MOST_FAILED_ATTEMPTS


def _tell_first_retry(state: RetryCallState) -> None:
    if state.attempt_number == 1 and state.outcome is not None:
        logger.info("post delayed, trying again: %s", state.outcome.exception())

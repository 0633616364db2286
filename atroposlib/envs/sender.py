"""Delivery of groups to the trajectory API: once handed over, a group is stored or its drop is counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from atroposlib.config.env import LogprobDtype
from atroposlib.envs.api_client import Refusal, TrajectoryApi, encode
from atroposlib.envs.telling import one_line
from atroposlib.errors import ApiError, WireError
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
INVALID = "invalid_group"


class Sender:
    """Posts groups; owns every post from the hand-over to its end, whoever waits for it.

    Frames go one a post, so that a group that is refused takes no other with it; to an API that takes no
    frames, groups go as they were handed over.

    Args:
        api: Client of the trajectory API; asked what it takes before the first post, unless it was.
        on_dropped: Called with a group and a reason when the API did not take it.
        on_masked: Called with a group and what of it was left out, by reason, because the API would have
            refused the group for it; see :func:`atroposlib.envs.frames.frame_of`.
        logprob_dtype: Type of the targets' logprobs in frames.
    """

    def __init__(
        self,
        api: TrajectoryApi,
        on_dropped: Callable[[ScoredDataGroup, str], None],
        on_masked: Callable[[ScoredDataGroup, Counter[str]], None] | None = None,
        logprob_dtype: LogprobDtype = "float16",
    ) -> None:
        self._api = api
        self._on_dropped = on_dropped
        self._on_masked = on_masked
        self._logprob_dtype = logprob_dtype
        self._posts: set[asyncio.Task[None]] = set()
        self._refused_room: set[asyncio.Task[Any] | None] = set()

    @property
    def is_blocked(self) -> bool:
        """Whether a post waits because the API's queue is full."""
        return bool(self._refused_room)

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
        waiting = deque([groups])
        failures: list[Exception] = []
        try:
            trouble = await self._probed()
            if self._api.takes_frames:
                waiting = deque([group] for group in groups)
            while waiting:
                reason = trouble or await self._post(waiting[0], as_list)
                ended = waiting.popleft()
                if reason is None:
                    failures += await _report_sent(ended, on_sent)
                    continue
                for group in ended:
                    self._on_dropped(group, reason)
        except BaseException:
            # Cancelled, or a defect of ours: either way nobody else has these groups any more.
            for group in (group for together in waiting for group in together):
                self._on_dropped(group, NOT_DELIVERED)
            raise
        if failures:
            raise failures[0]

    async def _post(self, groups: list[ScoredDataGroup], as_list: bool) -> str | None:
        """Post until the API takes the groups; the reason when it never will."""
        try:
            route, body, headers = await self._encoded(groups, as_list)
            await self._insist(partial(self._api.post, route, body, headers))
        except TypeError as error:
            logger.warning("group cannot be written as JSON: %s", error)
            return NOT_JSON
        except WireError as error:
            logger.warning("group dropped: %s", error)
            return INVALID
        except ApiError as error:
            return _drop_reason(error)
        return None

    async def _probed(self) -> str | None:
        """Know what the API takes; the reason when it refuses to tell."""
        if self._api.takes_frames is None:
            try:
                await self._insist(self._api.probe)
            except ApiError as error:
                return _drop_reason(error)
        return None

    async def _encoded(
        self, groups: list[ScoredDataGroup], as_list: bool
    ) -> tuple[str, bytes, dict[str, str]]:
        """Route, body and headers of a post. Raises TypeError or WireError for what cannot be encoded."""
        if not self._api.takes_frames:
            body, headers = await asyncio.to_thread(encode, groups if as_list else groups[0])
            return ("/scored_data_list" if as_list else "/scored_data"), body, headers
        # Imported here because numpy takes longer to import than --help may take to print.
        from atroposlib.envs.frames import FRAME_HEADERS, frame_of

        (group,) = groups
        frame, masked = await asyncio.to_thread(frame_of, group, self._logprob_dtype)
        if masked and self._on_masked is not None:
            self._on_masked(group, masked)
        return "/v1/groups", frame, FRAME_HEADERS

    async def _insist(self, request: Callable[[], Awaitable[Any]]) -> None:
        """Repeat a request while it can succeed later. Raises ApiError when it cannot."""
        # Imported here so that --help stays fast.
        from tenacity import AsyncRetrying, retry_if_exception

        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception(_can_succeed_later),
                stop=_FailsTooOften(),
                wait=_pause,
                before_sleep=_tell_first_retry,
                reraise=True,
            ):
                with attempt:
                    await self._noting_room(request)
        finally:
            self._refused_room.discard(asyncio.current_task())

    async def _noting_room(self, request: Callable[[], Awaitable[Any]]) -> None:
        """Make a request, and keep in mind whether the queue was too full for it."""
        post = asyncio.current_task()
        try:
            await request()
        except ApiError as error:
            if error.code == "api.queue_full":
                self._refused_room.add(post)
            else:
                self._refused_room.discard(post)
            raise


async def _report_sent(
    groups: list[ScoredDataGroup], on_sent: Callable[[ScoredDataGroup], Awaitable[None]]
) -> list[Exception]:
    """Await ``on_sent`` for every group, also after it failed for one; what it raised."""
    failures: list[Exception] = []
    for group in groups:
        try:
            await on_sent(group)
        except Exception as error:  # noqa: BLE001 - raised by the caller, once every stored group is recorded
            failures.append(error)
    return failures


def _drop_reason(error: ApiError) -> str:
    logger.warning("dropped: %s", error)
    return REFUSED if error.code == "api.refused" else FAILED


def _can_succeed_later(error: BaseException) -> bool:
    """No answer, a 5xx answer, a full queue, or no trainer yet."""
    return isinstance(error, ApiError) and error.code != "api.refused"


def _pause(state: RetryCallState) -> float:
    """Seconds to wait: a growing random number, and no less than the API asked for."""
    from tenacity import wait_random_exponential

    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.retry_after if isinstance(error, Refusal) else 0.0
    return max(asked, wait_random_exponential(multiplier=0.2, max=LONGEST_PAUSE_SECONDS)(state))


class _FailsTooOften:
    """Gives up after several 5xx answers in a row: such a request would hold its worker for ever.

    An API that is away or full, or that says when to come again, is waited for without limit.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def __call__(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        failed = isinstance(error, Refusal) and error.code == "api.failed" and not error.retry_after
        self._in_a_row = self._in_a_row + 1 if failed else 0
        return self._in_a_row >= MOST_FAILED_ATTEMPTS


def _tell_first_retry(state: RetryCallState) -> None:
    if state.attempt_number == 1 and state.outcome is not None:
        logger.info("post delayed, trying again: %s", state.outcome.exception())

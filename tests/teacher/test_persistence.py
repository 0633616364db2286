"""Repeats while a failure may pass, and a deadline whose clock can be stopped."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher.persistence import Deadline, Passing, persist


class Flaky:
    """Fails with each of ``failures`` in turn, then answers how often it was called."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.calls


def passing(kind: str) -> Passing:
    return Passing(TeacherError(kind), kind)  # type: ignore[arg-type]


async def test_a_call_that_succeeds_is_made_once() -> None:
    assert await persist(Flaky()) == 1


async def test_passing_failures_are_repeated() -> None:
    assert await persist(Flaky(*map(passing, ["down", "busy", "broken"]))) == 4


async def test_a_failure_that_does_not_pass_is_final() -> None:
    flaky = Flaky(passing("down"), TeacherError("final"))
    with pytest.raises(TeacherError, match="final"):
        await persist(flaky)
    assert flaky.calls == 2


async def test_what_breaks_two_servers_is_not_tried_on_a_third() -> None:
    flaky = Flaky(*map(passing, ["broken", "down", "broken", "down"]))
    with pytest.raises(TeacherError, match="broken"):
        await persist(flaky)
    assert flaky.calls == 3


async def test_without_patience_there_is_one_try() -> None:
    flaky = Flaky(passing("down"))
    with pytest.raises(TeacherError, match="down"):
        await persist(flaky, patience_s=0)
    assert flaky.calls == 1


async def test_a_deadline_passes() -> None:
    with pytest.raises(TimeoutError):
        async with Deadline(0.01) as deadline:
            await asyncio.Event().wait()
    assert deadline.passed


async def test_no_time_passes_while_the_clock_stands_still() -> None:
    async with Deadline(0.05) as deadline:
        deadline.stop()
        deadline.stop()
        await asyncio.sleep(0.2)
        deadline.go()
        deadline.go()
    assert not deadline.passed


async def test_a_clock_that_goes_again_passes() -> None:
    with pytest.raises(TimeoutError):
        await _stop_and_go()


async def _stop_and_go() -> None:
    async with Deadline(0.05) as deadline:
        deadline.stop()
        deadline.go()
        await asyncio.Event().wait()

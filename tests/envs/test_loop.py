"""The rollout loop under faults: no item is lost, whatever is cancelled, fails or goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from atroposlib.envs import loop as loop_module
from atroposlib.envs import registration
from atroposlib.envs import sender as sender_module
from atroposlib.envs.loop import RolloutLoop
from atroposlib.errors import RunError, StudentError
from atroposlib.journal import read_journal
from tests.envs.fakes import FakeApi, ToyEnv, items_of, until

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(loop_module, "LONGEST_OUTAGE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(registration, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(registration, "LONGEST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(sender_module, "LONGEST_PAUSE_SECONDS", 0.01)


async def test_run_ends_at_total_steps_and_says_goodbye(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url, total_steps=3)
    await env.env_manager()
    assert api.step >= 3
    assert api.calls["disconnect-env"] == 1
    assert env.curr_step >= 3
    assert env.runtime.counters.sent == len(api.groups)


async def test_total_steps_of_minus_one_are_the_trainers(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url, total_steps=-1)
    await env.env_manager()
    assert env.config.total_steps == 3


async def test_name_of_the_class_is_registered_without_wandb_name(api: FakeApi, make_env: Make) -> None:
    await make_env(rollout_server_url=api.url).env_manager()
    assert api.registered[0]["desired_name"] == "toy"


class Slow(ToyEnv):
    """Waits in the middle of every rollout."""

    async def setup(self) -> None:
        await super().setup()
        self.may_go = asyncio.Event()

    async def collect_trajectories(self, item: Any) -> Any:
        group = await super().collect_trajectories(item)
        await self.may_go.wait()
        return group


async def running_loop(env: Any) -> RolloutLoop:
    """A loop of a registered environment with its workers started."""
    await env.setup()
    await env.register_env()
    await env.get_server_info()
    loop = RolloutLoop(env)
    await loop._poll()
    await loop._fill()
    return loop


async def close(env: Any, loop: RolloutLoop) -> None:
    await loop.cancel_workers()
    await env.runtime.close()


async def test_no_more_workers_than_the_batches_ahead(api: FakeApi, make_env: Make) -> None:
    env = make_env(Slow, rollout_server_url=api.url, max_num_workers=100, max_batches_offpolicy=3)
    loop = await running_loop(env)
    # 3 batches of 4 sequences are 6 groups of 2.
    assert len(loop.workers) == 6
    await close(env, loop)


async def test_number_of_workers_is_bounded(api: FakeApi, make_env: Make) -> None:
    env = make_env(Slow, rollout_server_url=api.url, max_num_workers=2)
    loop = await running_loop(env)
    assert len(loop.workers) == 2
    await close(env, loop)


async def test_cancelled_workers_return_their_items(api: FakeApi, make_env: Make) -> None:
    env = make_env(Slow, rollout_server_url=api.url, max_num_workers=4)
    loop = await running_loop(env)
    await until(lambda: len(env.collected) == 4)
    await loop.cancel_workers()
    assert sorted(work.item for work in loop.backlog) == [0, 1, 2, 3]
    assert not loop.workers
    await close(env, loop)


async def test_worker_cancelled_before_its_first_step_returns_its_item(api: FakeApi, make_env: Make) -> None:
    env = make_env(Slow, rollout_server_url=api.url, max_num_workers=4)
    loop = await running_loop(env)
    assert env.collected == []
    await loop.cancel_workers()
    assert sorted(work.item for work in loop.backlog) == [0, 1, 2, 3]
    await close(env, loop)


async def test_backlog_is_worked_on_before_new_items(api: FakeApi, make_env: Make) -> None:
    env = make_env(Slow, rollout_server_url=api.url, max_num_workers=4)
    loop = await running_loop(env)
    await loop.cancel_workers()
    await loop._fill()
    assert env.given == [0, 1, 2, 3]
    await close(env, loop)


class SlowTeacher(ToyEnv):
    """Waits in the completion of a group, where a teacher is asked."""

    async def setup(self) -> None:
        await super().setup()
        self.may_go = asyncio.Event()
        self.asked = 0

    async def complete_group(self, group: Any) -> Any:
        self.asked += 1
        await self.may_go.wait()
        return group


async def test_group_cancelled_at_the_teacher_is_completed_later_without_sampling_anew(
    api: FakeApi, make_env: Make
) -> None:
    env = make_env(SlowTeacher, rollout_server_url=api.url, max_num_workers=2)
    loop = await running_loop(env)
    await until(lambda: env.asked == 2)
    await loop.cancel_workers()
    env.may_go.set()
    ids = {work.groups[0]["group_id"] for work in loop.backlog if work.groups}
    await loop._fill()
    await asyncio.gather(*loop.workers)
    assert items_of(api) == [0, 1]
    assert env.collected == [0, 1]
    assert {group["group_id"] for group in api.groups} == ids
    await close(env, loop)


async def test_worker_cancelled_while_sending_neither_loses_nor_repeats_its_group(
    api: FakeApi, make_env: Make
) -> None:
    api.gate.clear()
    env = make_env(rollout_server_url=api.url, max_num_workers=1)
    loop = await running_loop(env)
    await api.arrived.wait()
    await loop.cancel_workers()
    assert not loop.backlog
    api.gate.set()
    await close(env, loop)
    assert items_of(api) == [0]
    assert env.runtime.counters.sent == 1


class Failing(ToyEnv):
    """Fails on some items, as often as told."""

    failures: dict[int, int]

    async def collect_trajectories(self, item: Any) -> Any:
        if self.failures.get(item, 0) > 0:
            self.failures[item] -= 1
            raise ValueError(f"item {item} is broken")
        return await super().collect_trajectories(item)


async def test_failed_item_is_tried_again(api: FakeApi, make_env: Make) -> None:
    env = make_env(Failing, rollout_server_url=api.url, total_steps=4)
    env.failures = {1: 2}
    await env.env_manager()
    assert 1 in items_of(api)
    assert env.runtime.counters.retried == 2
    assert env.runtime.counters.dropped == {}


async def test_item_that_keeps_failing_is_dropped_with_a_reason(
    api: FakeApi, make_env: Make, tmp_path: Any
) -> None:
    env = make_env(
        Failing, rollout_server_url=api.url, total_steps=4, journal_path=str(tmp_path / "journal.jsonl")
    )
    env.failures = {1: 99}
    await env.env_manager()
    assert 1 not in items_of(api)
    assert env.failures[1] == 99 - loop_module.MOST_ATTEMPTS
    assert env.runtime.counters.dropped == {"rollout_failed": 1}
    dropped = [line for line in read_journal(tmp_path / "journal.jsonl") if line["kind"] == "group_dropped"]
    assert [(line["reason"], line["sequences"]) for line in dropped] == [("rollout_failed", 0)]


async def test_environment_that_only_fails_ends_with_its_last_error(api: FakeApi, make_env: Make) -> None:
    class Broken(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            raise KeyError("question")

    with pytest.raises(RunError, match="KeyError: 'question'"):
        await make_env(Broken, rollout_server_url=api.url).env_manager()
    assert api.calls["disconnect-env"] == 1


async def test_hanging_worker_is_given_up_counted_and_others_go_on(api: FakeApi, make_env: Make) -> None:
    class Hanging(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            if item == 0:
                await asyncio.Event().wait()
            return await super().collect_trajectories(item)

    env = make_env(Hanging, rollout_server_url=api.url, total_steps=10_000, worker_timeout=0.02)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: env.runtime.counters.dropped["worker_timeout"] == 1)
    api.step_offset = 10_000
    await run
    assert 0 not in items_of(api)


async def test_student_that_is_away_costs_no_item_and_one_log_line(
    api: FakeApi, make_env: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(ToyEnv):
        async def setup(self) -> None:
            await super().setup()
            self.refusals = 20

        async def collect_trajectories(self, item: Any) -> Any:
            if self.refusals > 0:
                self.refusals -= 1
                raise StudentError("away", code="student.unreachable")
            return await super().collect_trajectories(item)

    env = make_env(Away, rollout_server_url=api.url, max_num_workers=1)
    await env.env_manager()
    assert env.runtime.counters.dropped == {}
    assert items_of(api)[:3] == [0, 1, 2]
    assert len([record for record in caplog.records if "no new work" in record.message]) == 1


async def test_request_that_always_times_out_costs_its_item_attempts(api: FakeApi, make_env: Make) -> None:
    class TimesOut(ToyEnv):
        late = 99

        async def collect_trajectories(self, item: Any) -> Any:
            if item == 0 and self.late > 0:
                self.late -= 1
                error = StudentError("no answer in time", code="student.unreachable")
                error.timed_out = True
                raise error
            return await super().collect_trajectories(item)

    env = make_env(TimesOut, rollout_server_url=api.url, max_num_workers=1)
    await env.env_manager()
    assert env.late == 99 - loop_module.MOST_ATTEMPTS
    assert env.runtime.counters.dropped == {"rollout_failed": 1}
    assert 0 not in items_of(api)


async def test_environment_that_returns_nothing_is_counted(api: FakeApi, make_env: Make) -> None:
    class Choosy(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            return await super().collect_trajectories(item) if item % 2 else (None, [])

    env = make_env(Choosy, rollout_server_url=api.url)
    await env.env_manager()
    assert env.runtime.counters.dropped["no_group"] >= 3
    assert all(item % 2 for item in items_of(api))


async def test_handed_back_items_are_worked_on(api: FakeApi, make_env: Make) -> None:
    class HandsBack(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            group, _ = await super().collect_trajectories(item)
            return group, ([100 + item] if item < 100 else [])

    env = make_env(HandsBack, rollout_server_url=api.url, total_steps=6)
    await env.env_manager()
    assert {100, 101} <= set(items_of(api))


async def test_no_item_now_is_not_the_end(api: FakeApi, make_env: Make) -> None:
    class Pausing(ToyEnv):
        pauses = 3

        async def get_next_item(self) -> Any:
            if self.pauses > 0:
                self.pauses -= 1
                return None
            return await super().get_next_item()

    await make_env(Pausing, rollout_server_url=api.url).env_manager()
    assert api.step >= 3


async def test_several_groups_of_one_item_go_out_together(api: FakeApi, make_env: Make) -> None:
    class Several(ToyEnv):
        async def collect_trajectories(self, item: Any) -> Any:
            group, _ = await super().collect_trajectories(item)
            other, _ = await super().collect_trajectories(item)
            return [group, None, other], []

    api.is_atropos = True
    env = make_env(Several, rollout_server_url=api.url, total_steps=2)
    await env.env_manager()
    assert api.calls["post"] * 2 == len(api.groups)
    assert len({group["group_id"] for group in api.groups}) == len(api.groups)


class Evaluating(ToyEnv):
    """Notes how many items were given out while it evaluated."""

    api: FakeApi

    async def setup(self) -> None:
        await super().setup()
        self.given_meanwhile: list[int] = []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        before, polls = len(self.given), self.api.calls["status-env"]
        # After the last step there are no more polls to wait for.
        await until(
            lambda: self.api.calls["status-env"] > polls + 5 or self.curr_step >= self.config.total_steps
        )
        self.given_meanwhile.append(len(self.given) - before)


async def test_evaluation_runs_when_its_step_is_crossed_and_training_stops(
    api: FakeApi, make_env: Make
) -> None:
    env = make_env(Evaluating, rollout_server_url=api.url, steps_per_eval=2, total_steps=20)
    env.api = api
    await env.env_manager()
    assert env.given_meanwhile
    assert set(env.given_meanwhile) == {0}


class EvaluatingLong(ToyEnv):
    """Its evaluation ends when it is told to."""

    async def setup(self) -> None:
        await super().setup()
        self.may_end = asyncio.Event()
        self.evaluated = False

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        await self.may_end.wait()
        self.evaluated = True


@pytest.fixture
async def waiting_run(
    api: FakeApi, make_env: Make, caplog: pytest.LogCaptureFixture
) -> tuple[Any, asyncio.Task[None]]:
    """An environment whose loop has ended while an evaluation runs, and its manager."""
    caplog.set_level(logging.INFO)
    env = make_env(EvaluatingLong, rollout_server_url=api.url, steps_per_eval=3, total_steps=3)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: run.done() or "waiting for the evaluation" in caplog.text)
    return env, run


async def test_evaluation_of_the_last_step_is_finished(waiting_run: Any) -> None:
    env, run = waiting_run
    env.may_end.set()
    await run
    assert env.evaluated


async def test_signal_cancels_the_evaluation_of_the_last_step(waiting_run: Any) -> None:
    env, run = waiting_run
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert env.eval_runner.cancelled()


async def test_failed_evaluation_is_told_and_the_run_goes_on(
    api: FakeApi, make_env: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ToyEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            raise ValueError("no data")

    env = make_env(Broken, rollout_server_url=api.url, steps_per_eval=1, total_steps=5)
    await env.env_manager()
    assert any("evaluation failed: ValueError: no data" in record.message for record in caplog.records)


async def test_restarted_api_is_registered_with_again_and_nothing_is_lost(
    api: FakeApi, make_env: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    env = make_env(rollout_server_url=api.url, total_steps=40, max_num_workers=4)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: len(api.groups) >= 4)
    await api.stop()
    api.forgotten = True
    await until(lambda: any("lost the trajectory API" in record.message for record in caplog.records))
    await api.start()
    await run
    assert len(api.registered) == 2
    assert env.env_id == 1
    assert env.runtime.counters.dropped == {}
    items = items_of(api)
    assert items == sorted(set(items))
    # Every item up to the last started ones has arrived.
    assert items[: len(items) - 8] == list(range(len(items) - 8))
    assert len([record for record in caplog.records if "the API is back" in record.message]) <= 1


async def test_api_that_was_only_away_keeps_the_registration(
    api: FakeApi, make_env: Make, caplog: pytest.LogCaptureFixture
) -> None:
    env = make_env(rollout_server_url=api.url, total_steps=40, max_num_workers=4)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: len(api.groups) >= 4)
    await api.stop()
    await until(lambda: any("lost the trajectory API" in record.message for record in caplog.records))
    await api.start()
    await run
    assert len(api.registered) == 1


async def test_api_of_atropos_that_forgot_the_environment_is_registered_with_again(
    api: FakeApi, make_env: Make
) -> None:
    api.is_atropos = True
    env = make_env(rollout_server_url=api.url, total_steps=40, max_num_workers=4)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: len(api.groups) >= 4)
    api.forgotten = True
    await run
    assert len(api.registered) == 2
    assert env.runtime.counters.dropped == {}


async def test_restart_between_two_polls_shows_in_a_smaller_step(api: FakeApi, make_env: Make) -> None:
    env = make_env(rollout_server_url=api.url, total_steps=40, max_num_workers=4)
    run = asyncio.create_task(env.env_manager())
    await until(lambda: env.curr_step >= 3)
    api.step_offset -= 3
    api.forgotten = True
    await run
    assert len(api.registered) == 2


async def test_end_cancels_the_workers_that_are_left(api: FakeApi, make_env: Make) -> None:
    class LastOneHangs(ToyEnv):
        hung = False

        async def collect_trajectories(self, item: Any) -> Any:
            if item == 3:
                try:
                    await asyncio.Event().wait()
                finally:
                    self.hung = True
            return await super().collect_trajectories(item)

    env = make_env(LastOneHangs, rollout_server_url=api.url)
    await env.env_manager()
    assert env.hung
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert [task for task in left if "atroposlib" in repr(task)] == []


async def test_group_that_does_not_fit_into_a_batch_is_a_usage_error(api: FakeApi, make_env: Make) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        await make_env(rollout_server_url=api.url, group_size=5).env_manager()

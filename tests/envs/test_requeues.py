"""Groups that wait for their teacher go back with what was sampled, a bounded number of times, or drop."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from atroposlib.envs import loop as loop_module
from atroposlib.envs import registration
from atroposlib.envs.requeues import Requeues
from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.journal import read_journal
from tests.envs.fake_teachers import FakeTeacher, install, server_of
from tests.envs.fakes import FakeApi, group_of, items_of
from tests.envs.test_several_teachers import Config, Env


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(loop_module, "LONGEST_OUTAGE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(registration, "FIRST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(registration, "LONGEST_PAUSE_SECONDS", 0.01)


class Unchecked(Env):
    """Its teachers are fakes from the start, so nothing is asked before the run."""

    async def check_servers(self) -> None:
        return None


class Trouble:
    """Fails on items of which the number is given, so many times each."""

    def __init__(self, times: int, *items: int, error: Exception | None = None) -> None:
        self.times, self.items = times, items
        self.error = error or TeacherError("broken", code="teacher.failed")
        self.asked: Counter[int] = Counter()

    def __call__(self, ids: Sequence[int]) -> None:
        item = ids[0]
        self.asked[item] += 1
        # Two sequences an item.
        if item in self.items and self.asked[item] <= 2 * self.times:
            raise self.error


@pytest.fixture
def make(tokenizer_dir: Path) -> Callable[..., Any]:
    def build(trouble: Trouble, env_cls: type[Env] = Unchecked, **settings: Any) -> Any:
        config = Config(tokenizer_name=str(tokenizer_dir), teacher_enabled=True, teacher_top_k=2, **settings)
        env = env_cls(config, [], testing=True, teacher_server_configs=[server_of(tokenizer_dir)])
        install(env, {"teacher": FakeTeacher("teacher", trouble)})
        return env

    return build


async def test_group_that_no_teacher_scored_comes_back_without_another_rollout(
    api: FakeApi, make: Callable[..., Any], tmp_path: Path
) -> None:
    env = make(Trouble(2, 1), rollout_server_url=api.url, total_steps=6, journal_path=str(tmp_path / "j"))
    await env.env_manager()
    assert 1 in items_of(api)
    assert env.collected.count(1) == 1
    assert env.runtime.counters.requeued == {"teacher_failed": 2}
    assert env.runtime.counters.dropped == {}
    assert all(len(group["distill_token_ids"]) == 2 for group in api.groups)
    kinds = [line["reason"] for line in read_journal(tmp_path / "j") if line["kind"] == "group_requeued"]
    assert kinds == ["teacher_failed"] * 2


async def test_group_is_dropped_with_its_reason_when_it_came_back_too_often(
    api: FakeApi, make: Callable[..., Any]
) -> None:
    trouble = Trouble(1000, 1)
    env = make(trouble, rollout_server_url=api.url, total_steps=12, teacher_requeues=2)
    await env.env_manager()
    assert 1 not in items_of(api)
    assert trouble.asked[1] == 2 * 3
    assert env.runtime.counters.requeued == {"teacher_failed": 2}
    assert env.runtime.counters.dropped == {"teacher_failed": 1}
    # What a group lacked is counted once, when its fate is known.
    assert env.runtime.counters.masked == {"teacher_failed": 4}


async def test_group_that_is_asked_about_only_once_is_never_requeued(
    api: FakeApi, make: Callable[..., Any]
) -> None:
    env = make(Trouble(1, 1), rollout_server_url=api.url, total_steps=4, teacher_requeues=0)
    await env.env_manager()
    assert env.runtime.counters.requeued == {}
    assert env.runtime.counters.dropped == {"teacher_failed": 1}


async def test_refused_group_is_not_asked_again(api: FakeApi, make: Callable[..., Any]) -> None:
    trouble = Trouble(1000, 1, error=TeacherError("no", code="teacher.refused"))
    env = make(trouble, rollout_server_url=api.url, total_steps=4)
    await env.env_manager()
    assert trouble.asked[1] == 2
    assert env.runtime.counters.dropped == {"teacher_refused": 1}


LOCKED_OUT = TeacherError("wrong key", code="teacher.refused")
LOCKED_OUT.servers_at_fault = True


@pytest.mark.parametrize("error", [TeacherUnreachable("away"), LOCKED_OUT])
async def test_outage_pauses_new_work_and_is_told_once(
    api: FakeApi, make: Callable[..., Any], caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    trouble = Trouble(1, 0, 1, 2, error=error)
    env = make(trouble, rollout_server_url=api.url, total_steps=4)
    with caplog.at_level(logging.WARNING):
        await env.env_manager()
    assert {0, 1, 2} <= set(items_of(api))
    told = [record.message for record in caplog.records if "no new work" in record.message]
    assert len(told) == 1
    assert str(error) in told[0]


class Partly(Trouble):
    """Fails on an item's first sequence alone."""

    def __call__(self, ids: Sequence[int]) -> None:
        item = ids[0]
        self.asked[item] += 1
        if item in self.items and self.asked[item] == 1:
            raise self.error


@pytest.mark.parametrize(
    ("policy", "requeued", "dropped", "masked"),
    [
        ("mask", {}, {}, {"teacher_failed": 2}),
        ("requeue", {"teacher_failed": 1}, {}, {}),
        ("drop", {}, {"teacher_failed": 1}, {"teacher_failed": 4}),
    ],
)
async def test_policy_for_a_group_that_is_scored_in_part(
    api: FakeApi, make: Callable[..., Any], policy: str, requeued: Any, dropped: Any, masked: Any
) -> None:
    env = make(Partly(1, 1), rollout_server_url=api.url, total_steps=6, on_teacher_failure=policy)
    await env.env_manager()
    counters = env.runtime.counters
    assert (counters.requeued, counters.dropped, counters.masked) == (requeued, dropped, masked)
    assert (1 in items_of(api)) is (not dropped)


class OfTwoGroups(Unchecked):
    """Every item gives two groups; the second begins with 100 more."""

    async def collect_trajectories(self, item: Any) -> Any:
        first, _ = await super().collect_trajectories(item)
        second = group_of(0.0, 1.0)
        second["tokens"] = [[item + 100, *ids[1:]] for ids in second["tokens"]]
        return [first, second], []


async def test_group_that_waits_keeps_no_other_of_its_item(api: FakeApi, make: Callable[..., Any]) -> None:
    trouble = Trouble(1, 1)
    env = make(trouble, OfTwoGroups, rollout_server_url=api.url, total_steps=6)
    await env.env_manager()
    posted = items_of(api)
    assert posted.count(1) == 1
    assert posted.count(101) == 1
    assert trouble.asked[101] == 2


async def test_process_cannot_requeue_and_drops(make: Callable[..., Any], tmp_path: Path) -> None:
    env = make(Trouble(1, 1), data_path_to_save_groups=str(tmp_path / "groups.jsonl"))
    env.process_mode, env.n_groups_to_process, env.group_size_to_process = True, 2, 2
    await env.process_manager()
    assert env.runtime.counters.requeued == {}
    assert env.runtime.counters.dropped == {"teacher_failed": 1}
    assert env.runtime.counters.sent == 2


async def test_group_that_an_author_hands_over_himself_is_dropped_not_lost(
    api: FakeApi, make: Callable[..., Any]
) -> None:
    env = make(Trouble(1, 1), rollout_server_url=api.url)
    await env.handle_send_to_api(group_of(0.0, 1.0))
    await env.runtime.close()
    assert env.runtime.counters.dropped == {"teacher_failed": 1}


def test_only_a_held_group_may_go_back_and_only_so_often() -> None:
    requeues, group, error = Requeues(), {"group_id": "a"}, ValueError()
    assert not requeues.ask(group, error, 1)
    requeues.hold([group])
    assert requeues.ask(group, error, 1)
    assert requeues.take([group]) == [(group, error)]
    assert requeues.take([group]) == []
    requeues.hold([group])
    assert not requeues.ask(group, error, 1)
    requeues.forget(group)
    assert requeues.ask(group, error, 1)

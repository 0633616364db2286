"""Requests that come together are run together, and none waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request

from atroposlib.connection import while_connected
from atroposlib.modelserver.admission import BatchLimits, choose_batch
from atroposlib.modelserver.sampling import new_generator
from atroposlib.modelserver.work import Job, SamplingOptions, Sequence
from tests.modelserver.conftest import Served, serving
from tests.support.processes import until

LIMITS = BatchLimits(max_num_seqs=4, max_num_batched_tokens=100, max_cached_tokens=200, batch_wait_s=0)


def queue(*wanted: tuple[int, int], n: int = 1) -> list[Sequence]:
    """Waiting sequences, one job for each (prompt length, max_tokens) with ``n`` sequences."""
    sequences = []
    for length, max_tokens in wanted:
        job = Job([1] * length, SamplingOptions(max_tokens=max_tokens, n=n), done=lambda _: None)
        job.sequences = [Sequence(job, i, new_generator(i), stream=None) for i in range(n)]  # type: ignore[arg-type]
        sequences += job.sequences
    return sequences


def chosen(waiting: list[Sequence], running: Many[Sequence] = (), limits: BatchLimits = LIMITS) -> list[int]:
    taken = choose_batch(waiting, list(running), limits)
    return [waiting.index(sequence) for sequence in taken]


def test_scoring_requests_make_a_batch_of_their_own() -> None:
    assert chosen(queue((10, 1), (10, 5), (12, 1))) == [0, 2]
    assert chosen(queue((10, 5), (10, 1), (12, 7))) == [0, 2]


def test_padded_prompt_tokens_are_limited() -> None:
    assert chosen(queue((40, 1), (20, 1), (20, 1))) == [0, 1]
    assert chosen(queue((20, 1), (90, 1), (20, 1))) == [0, 2]


def test_prompt_above_the_limit_goes_alone() -> None:
    assert chosen(queue((300, 1), (10, 1))) == [0]


def test_choices_of_a_request_count_their_prompt_once() -> None:
    assert chosen(queue((30, 5), n=4)) == [0, 1, 2, 3]


def test_running_sequences_are_limited_by_number_and_by_cache() -> None:
    assert chosen(queue((5, 5), (5, 5), (5, 5)), running=queue((5, 5), (5, 5))) == [0, 1]
    assert chosen(queue((5, 5), (5, 5)), running=queue((50, 40))) == [0]


def test_sequence_larger_than_the_cache_runs_alone() -> None:
    assert chosen(queue((150, 100), (5, 5))) == [0]


def test_later_small_requests_do_not_overtake_one_that_waits_for_room() -> None:
    running = queue((50, 40))
    assert chosen(queue((100, 50), (5, 5)), running=running) == []


def test_scoring_is_not_held_up_by_a_full_running_batch() -> None:
    running = queue((5, 5), (5, 5), (5, 5), (5, 5))
    assert chosen(queue((5, 5), (5, 1)), running=running) == [1]


def counted(server: Served, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the engine's forward passes by kind."""
    calls: Counter[str] = Counter()
    for name in ("prefill", "decode"):
        honest = getattr(server.engine, name)

        def run(argument: Any, name: str = name, honest: Any = honest) -> Any:
            calls[name] += 1
            return honest(argument)

        monkeypatch.setattr(server.engine, name, run)
    return calls


@pytest.fixture
async def patient(tiny_model_dir: Path) -> Any:
    """A server that waits long enough for requests sent together to be one batch."""
    async with serving(tiny_model_dir, batch_wait_ms=300) as server:
        yield server


async def test_eight_at_once_take_the_steps_of_one(patient: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(patient, monkeypatch)
    body = {"max_tokens": 10, "ignore_eos": True, "temperature": 1.0}
    await asyncio.gather(*(patient.complete([5] * (3 + n), **body) for n in range(8)))
    assert calls == {"prefill": 1, "decode": 9}


async def test_eight_scored_at_once_take_one_pass(patient: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(patient, monkeypatch)
    scoring = {"prompt_logprobs": 2, "max_tokens": 1, "temperature": 0}
    await asyncio.gather(*(patient.complete([5] * (3 + n), **scoring) for n in range(8)))
    assert calls == {"prefill": 1}


async def test_eight_choices_share_one_prompt(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    tiny.engine._base.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    await tiny.complete([5, 6, 7], n=8, max_tokens=3, ignore_eos=True, temperature=1.0)
    assert shapes == [(1, 3), (8, 1), (8, 1)]


async def test_request_joins_a_generation_and_leaves_before_it(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short and a scoring request sent during a long one are answered first, and all are right."""
    started, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    honest = tiny.engine.decode
    steps = 0

    def decode(batch: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            loop.call_soon_threadsafe(started.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)
        honest(batch)

    body = {"seed": 3, "ignore_eos": True, "return_token_ids": True, "temperature": 1.0}
    (alone,) = await tiny.complete([9, 8, 7], max_tokens=200, **body)
    (short_alone,) = await tiny.complete([5] * 30, max_tokens=4, **body)
    monkeypatch.setattr(tiny.engine, "decode", decode)
    order: list[str] = []

    async def tracked(name: str, ids: list[int], **options: Any) -> dict[str, Any]:
        (choice,) = await tiny.complete(ids, **body, **options)
        order.append(name)
        return choice

    long = asyncio.create_task(tracked("long", [9, 8, 7], max_tokens=200))
    await started.wait()
    others = [
        asyncio.create_task(tracked("short", [5] * 30, max_tokens=4)),
        asyncio.create_task(tracked("scoring", [5, 6, 7], max_tokens=1, prompt_logprobs=1)),
    ]
    await until(lambda: len(tiny.model.scheduler._live) == 3)
    go_on.set()
    short, scored = await asyncio.gather(*others)
    assert (await long)["token_ids"] == alone["token_ids"]
    assert short["token_ids"] == short_alone["token_ids"]
    assert len(scored["prompt_logprobs"]) == 3
    assert order[-1] == "long"


async def test_request_whose_client_went_away_is_dropped(tiny: Served) -> None:
    task = asyncio.create_task(
        tiny.model.run([[5, 6, 7]], [SamplingOptions(max_tokens=400, ignore_eos=True)])
    )
    await until(lambda: bool(tiny.model.scheduler._live))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not tiny.model.scheduler._live
    # The first call waits for the step that may be under way, in which the sequence is still running.
    for _ in range(2):
        running = await asyncio.wrap_future(tiny.model.scheduler.call(lambda: tiny.model.scheduler._running))
    assert running is None


async def test_closed_connection_cancels_the_work() -> None:
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    assert await while_connected(Request({"type": "http"}, receive), work()) is None
    assert cancelled.is_set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_worker_that_dies_leaves_nobody_waiting(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise SystemError

    monkeypatch.setattr(tiny.model.scheduler, "_step", broken)
    first, second = [
        await tiny.client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 5}) for _ in range(2)
    ]
    assert (first.status_code, second.status_code) == (500, 500)
    assert (await tiny.client.get("/health")).status_code == 503
    pause = await tiny.client.post("/pause?mode=keep")
    assert pause.status_code == 500


async def test_failed_batch_fails_its_requests_and_the_server_goes_on(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(batch: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(tiny.engine, "decode", broken)
        reply = await tiny.client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 5})
    assert (reply.status_code, reply.json()["error"]["message"]) == (500, "out of memory")
    assert len(await tiny.complete("Hi", max_tokens=5)) == 1
    assert (await tiny.client.get("/health")).status_code == 200

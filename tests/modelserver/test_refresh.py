"""Pausing, and new weights in a server that runs."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from tests.modelserver.conftest import Served
from tests.support.oracle import float64_oracle
from tests.support.processes import until
from tests.support.tiny import write_tiny_model

IDS = [40, 41, 42]
LONG: dict[str, Any] = {
    "max_tokens": 60,
    "seed": 3,
    "ignore_eos": True,
    "return_token_ids": True,
    "logprobs": 0,
    "temperature": 1.0,
}


@asynccontextmanager
async def paused_in_the_middle(
    server: Served, monkeypatch: pytest.MonkeyPatch, mode: str
) -> AsyncIterator[asyncio.Task[list[dict[str, Any]]]]:
    """A long completion that has 5 tokens when the server is paused; for ``wait`` the pause is only begun."""
    loop = asyncio.get_running_loop()
    reached, paused = asyncio.Event(), asyncio.Event()
    honest = server.engine.decode
    steps = 0

    def decode(batch: Any) -> None:
        nonlocal steps
        honest(batch)
        steps += 1
        if steps == 4:
            loop.call_soon_threadsafe(reached.set)
            asyncio.run_coroutine_threadsafe(paused.wait(), loop).result(30)

    monkeypatch.setattr(server.engine, "decode", decode)
    task = asyncio.create_task(server.complete(IDS, **LONG))
    await reached.wait()
    pausing = asyncio.create_task(server.post(f"/pause?mode={mode}"))
    await until(lambda: server.model.scheduler.paused)
    paused.set()
    assert await pausing == {"status": "paused"}
    yield task


async def test_abort_ends_a_request_with_what_it_has(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = await tiny.complete(IDS, **LONG)
    async with paused_in_the_middle(tiny, monkeypatch, "abort") as task:
        (choice,) = await task
    assert (choice["finish_reason"], choice["stop_reason"]) == ("abort", None)
    assert choice["token_ids"] == whole["token_ids"][:5]
    assert len(choice["logprobs"]["token_logprobs"]) == 5


async def test_wait_lets_a_request_finish(tiny: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with paused_in_the_middle(tiny, monkeypatch, "wait") as task:
        # The pause is answered when nothing runs any more, so the reply is there.
        (choice,) = await asyncio.wait_for(task, 5)
    assert len(choice["token_ids"]) == 60


async def test_keep_freezes_a_request_and_resume_goes_on_with_it(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = await tiny.complete(IDS, **LONG)
    async with paused_in_the_middle(tiny, monkeypatch, "keep") as task:
        sequences = tiny.model.scheduler._running.sequences  # type: ignore[union-attr]
        assert [len(sequence.ids) for sequence in sequences] == [5]
        await tiny.post("/reset_prefix_cache")
        assert [len(sequence.ids) for sequence in sequences] == [5]
        await tiny.post("/resume")
        (choice,) = await task
    assert choice["token_ids"] == whole["token_ids"]


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_requests_sent_while_paused_wait_for_resume(tiny: Served, mode: str) -> None:
    await tiny.post(f"/pause?mode={mode}")
    task = asyncio.create_task(tiny.complete(IDS, max_tokens=2))
    await until(lambda: bool(tiny.model.scheduler._held))
    assert (await tiny.client.get("/is_paused")).json() == {"is_paused": True}
    # Runs on the worker behind whatever it would have done with the request.
    await asyncio.wrap_future(tiny.model.scheduler.call(lambda: None))
    assert not task.done()
    await tiny.post("/resume")
    assert len(await task) == 1


async def test_pause_that_nobody_waits_for_harms_nothing(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paused_in_the_middle(tiny, monkeypatch, "keep") as task:
        for mode in ("keep", "wait"):
            tiny.model.scheduler.pause(mode).cancel()
        await tiny.post("/resume")
        assert len((await task)[0]["token_ids"]) == 60
    assert (await tiny.client.get("/health")).status_code == 200


async def test_abort_after_keep_ends_the_frozen_request(
    tiny: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paused_in_the_middle(tiny, monkeypatch, "keep") as task:
        await tiny.post("/pause?mode=abort")
        (choice,) = await task
    assert (choice["finish_reason"], len(choice["token_ids"])) == ("abort", 5)


async def reload(server: Served, path: Path | str) -> tuple[int, str]:
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    reply = await server.client.post("/collective_rpc", json=body)
    return reply.status_code, reply.text


async def prompt_logprobs(server: Served) -> list[float]:
    (choice,) = await server.complete([5, 9, 33, 2, 8], prompt_logprobs=0, max_tokens=1)
    return [next(iter(entry.values()))["logprob"] for entry in choice["prompt_logprobs"][1:]]


@pytest.fixture(scope="module")
def other_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("other") / "model", seed=1)


async def test_reloaded_weights_are_those_that_answer(tiny: Served, other_model_dir: Path) -> None:
    before = await prompt_logprobs(tiny)
    await tiny.post("/pause?mode=keep")
    assert await reload(tiny, other_model_dir) == (200, '{"results":[null]}')
    await tiny.post("/update_weight_version", new_version="step-1")
    await tiny.post("/resume")
    ids = [5, 9, 33, 2, 8]
    table = float64_oracle(other_model_dir)(ids)
    after = await prompt_logprobs(tiny)
    assert np.allclose(after, [table[i - 1, ids[i]] for i in range(1, 5)], atol=3e-4)
    assert not np.allclose(after, before, atol=0.1)
    assert (await tiny.client.get("/weight_info")).json() == {"weight_version": "step-1"}


async def test_weights_alone_are_enough_to_reload(
    tiny: Served, other_model_dir: Path, tmp_path: Path
) -> None:
    shutil.copy(other_model_dir / "model.safetensors", tmp_path)
    before = await prompt_logprobs(tiny)
    assert (await reload(tiny, tmp_path))[0] == 200
    assert await prompt_logprobs(tiny) != before


async def test_reload_without_path_takes_the_last_directory(
    tiny: Served, tiny_model_dir: Path, other_model_dir: Path
) -> None:
    await reload(tiny, other_model_dir)
    other = await prompt_logprobs(tiny)
    for parameter in tiny.engine.model.parameters():
        parameter.zero_()
    await tiny.post("/collective_rpc", method="reload_weights")
    assert await prompt_logprobs(tiny) == other


def damaged(kind: str, source: Path, target: Path) -> Path | str:
    """A path that cannot be reloaded from, for one reason."""
    if kind == "no directory":
        return target / "nowhere"
    if kind == "a hub id":
        return "owner/model"
    shutil.copytree(source, target, dirs_exist_ok=True)
    file = target / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    if kind == "no weights":
        file.unlink()
    elif kind == "not safetensors":
        file.write_bytes(json.dumps({"weights": 1}).encode())
    elif kind == "missing tensor":
        del tensors[name]
        save_file(tensors, file, {"format": "pt"})
    elif kind == "tensor too many":
        save_file(
            {**tensors, "model.layers.2.mlp.up_proj.weight": tensors[name].clone()}, file, {"format": "pt"}
        )
    elif kind == "other shape":
        save_file({**tensors, name: tensors[name][:-1].clone()}, file, {"format": "pt"})
    return target


@pytest.mark.parametrize(
    "kind",
    [
        "no directory",
        "a hub id",
        "no weights",
        "not safetensors",
        "missing tensor",
        "tensor too many",
        "other shape",
    ],
)
async def test_bad_weights_answer_500_and_leave_the_old_ones(
    tiny: Served, other_model_dir: Path, tmp_path: Path, kind: str
) -> None:
    before = await prompt_logprobs(tiny)
    status, text = await reload(tiny, damaged(kind, other_model_dir, tmp_path))
    assert status == 500
    assert json.loads(text)["error"]["type"] == "InternalServerError"
    assert await prompt_logprobs(tiny) == before
    assert tiny.model.weights_path != str(tmp_path)

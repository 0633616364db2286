"""A real vLLM that dies with requests under way, and whose key covers the plugin's routes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import aiohttp
import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import TeacherError
from atroposlib.teacher.completions import Completions
from atroposlib.teacher.generate import Generate
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.plugin import PluginRoute
from atroposlib.teacher.protocol import Capabilities, Question, Route
from atroposlib.teacher.transport import TEACHER, Peer, open_session, peer_of
from tests.support.running_vllm import NAME, vllm_process
from tests.vllm.raw import get, post

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

KEY = "not-a-real-key"
ROUTES: tuple[Route, ...] = (PluginRoute(), Generate(), Completions())
QUESTION = Question(np.array([1, 2, 3], np.int32), 1)
CAN = Capabilities("", "", NAME)
EXIT_S = 60

Running = tuple["Popen[bytes]", str]


@pytest.fixture(scope="module")
def guarded(vllm: str, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A second vLLM, with a key: its process and its URL."""
    log = tmp_path_factory.mktemp("guarded") / "vllm.log"
    with vllm_process(model_dir, log, "--enable-scale-out", "--api-key", KEY) as (process, server):
        yield process, server.url


def peer(url: str, **settings: Any) -> Peer:
    config = APIServerConfig(base_url=f"{url}/v1", model_name=NAME, server_type="vllm", **settings)
    return peer_of(config, TEACHER)


@pytest.mark.parametrize("key", ["", "another-key"])
async def test_key_of_the_server_covers_the_plugins_routes(guarded: Running, key: str) -> None:
    _, url = guarded
    async with open_session() as session:
        for call in (
            PluginRoute().probe(session, peer(url, api_key=key)),
            PluginRoute().score(session, peer(url, api_key=key), QUESTION, CAN),
        ):
            with pytest.raises(TeacherError) as caught:
                await call
            assert caught.value.code == "teacher.refused"
            assert "api_key" in (caught.value.fix or "")
        assert await PluginRoute().probe(session, peer(url, api_key=KEY)) is not None
        assert (await PluginRoute().score(session, peer(url, api_key=KEY), QUESTION, CAN)).ids.shape == (2, 2)


async def test_engine_that_is_killed_fails_the_requests_under_way_and_then_the_server(
    guarded: Running,
) -> None:
    process, url = guarded
    # A paused engine keeps every request, so that all of them are under way when it dies.
    post(url, "/pause?mode=keep")
    sent = asyncio.Semaphore(0)
    async with aiohttp.ClientSession(trace_configs=[_telling(sent)]) as session:
        under_way = [
            asyncio.create_task(route.score(session, peer(url, api_key=KEY), QUESTION, CAN))
            for route in ROUTES
        ]
        for _ in ROUTES:
            await sent.acquire()
        get(url, "/is_paused")
        os.kill(_engine(process.pid), signal.SIGKILL)
        for failure in await asyncio.gather(*under_way, return_exceptions=True):
            assert isinstance(failure, Passing)
            assert failure.kind == "broken"
        await asyncio.to_thread(process.wait, EXIT_S)
        for route in ROUTES:
            with pytest.raises(Passing) as caught:
                await route.score(session, peer(url, api_key=KEY), QUESTION, CAN)
            assert caught.value.kind == "down"


def _telling(sent: asyncio.Semaphore) -> aiohttp.TraceConfig:
    """Releases ``sent`` whenever the body of a request has been sent."""
    config = aiohttp.TraceConfig()

    async def told(*_: object) -> None:
        sent.release()

    config.on_request_chunk_sent.append(told)
    return config


def _engine(server: int) -> int:
    """The child of an API server that is its engine."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    (engine,) = (pid for pid in children if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(engine)

"""A trajectory API that misbehaves on demand, and an environment that needs no model."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from atroposlib.envs.base import BaseEnv, BaseEnvConfig, Item, ScoredDataGroup
from atroposlib.wire.arrays import to_lists
from atroposlib.wire.frame import decode_group
from atroposlib.wire.media import FRAME_TYPE


class FakeApi:
    """Atropos's routes over a list.

    The step counts batches of ``batch_size`` sequences as they arrive, so a run ends by itself.

    Attributes:
        groups: Every group that was stored.
        answers: Statuses for the next posts of groups; 200 and storing when empty.
        retry_after: Header of these answers, when it is set.
        gate: Posts of groups wait for it before they are stored.
        arrived: Set when a post has reached the gate.
        forgotten: The API says it knows no environment, as after a restart.
        is_atropos: It is Atropos's own: no /v1 routes, and 500 for an environment it does not know.
        calls: Number of calls by route.
    """

    def __init__(self, batch_size: int = 4) -> None:
        self.batch_size = batch_size
        self.step_offset = 0
        self.groups: list[dict[str, Any]] = []
        self.answers: deque[tuple[int, dict[str, Any]]] = deque()
        self.retry_after: str | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.calls: Counter[str] = Counter()
        self.registered: list[dict[str, Any]] = []
        self.forgotten = False
        self.is_atropos = False
        self.not_started = 0
        self.project: str | None = "project"
        self.raw: list[bytes] = []
        self.encodings: list[str | None] = []
        self.queue_size = 0
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def step(self) -> int:
        """Batches that have arrived."""
        return self.step_offset + sum(len(group["tokens"]) for group in self.groups) // self.batch_size

    async def start(self) -> None:
        """Listen; a second start takes the same port."""
        app = web.Application(client_max_size=1 << 28)
        app.add_routes(
            [
                web.post("/register-env", self._register),
                web.post("/disconnect-env", self._disconnect),
                web.get("/status-env", self._status),
                web.get("/info", self._info),
                web.get("/wandb_info", self._wandb),
                web.get("/v1/status", self._v1_status),
                web.post("/v1/groups", self._post),
                web.post("/scored_data", self._post),
                web.post("/scored_data_list", self._post),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Close the port and every connection."""
        assert self._runner is not None
        await self._runner.cleanup()

    async def _register(self, request: web.Request) -> web.Response:
        self.calls["register-env"] += 1
        if self.not_started > 0:
            self.not_started -= 1
            return web.json_response({"status": "wait for trainer to start"})
        body = await request.json()
        self.registered.append(body)
        self.forgotten = False
        answer = {
            "status": "success",
            "env_id": len(self.registered) - 1,
            "wandb_name": f"{body['desired_name']}_{len(self.registered) - 1}",
            "checkpoint_dir": "",
            "starting_step": self.step,
            "checkpoint_interval": -1,
            "num_steps": 3,
        }
        return web.json_response(answer)

    async def _disconnect(self, request: web.Request) -> web.Response:
        self.calls["disconnect-env"] += 1
        return web.json_response({"status": "success"})

    async def _status(self, request: web.Request) -> web.Response:
        self.calls["status-env"] += 1
        if self.is_atropos and self.forgotten:
            return web.Response(status=500, text="Internal Server Error")
        return web.json_response(
            {
                "current_step": self.step,
                "queue_size": self.queue_size,
                "unallocated_fraction": 1.0,
                "self_queue_size": 0,
                "max_group_size": 1,
                "env_weight": 1.0,
            }
        )

    async def _v1_status(self, request: web.Request) -> web.Response:
        self.calls["v1-status"] += 1
        if self.is_atropos:
            return web.json_response({"detail": "Not Found"}, status=404)
        envs = [
            {"env_id": index, "name": f"{env['desired_name']}_{index}"}
            for index, env in enumerate(self.registered)
        ]
        return web.json_response({"envs": [] if self.forgotten else envs})

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"batch_size": self.batch_size, "max_token_len": 64})

    async def _wandb(self, request: web.Request) -> web.Response:
        return web.json_response({"group": "group", "project": self.project})

    async def _post(self, request: web.Request) -> web.Response:
        self.calls["post"] += 1
        body = await request.read()
        self.encodings.append(request.headers.get("Content-Encoding"))
        self.arrived.set()
        await self.gate.wait()
        if self.answers:
            status, answer = self.answers.popleft()
            headers = {"Retry-After": self.retry_after} if self.retry_after else {}
            return web.json_response(answer, status=status, headers=headers)
        self.raw.append(body)
        groups = to_lists(decode_group(body)) if request.content_type == FRAME_TYPE else json.loads(body)
        self.groups.extend(groups if isinstance(groups, list) else [groups])
        return web.json_response({"status": "received"})


@asynccontextmanager
async def fake_api(**settings: Any) -> AsyncIterator[FakeApi]:
    """A running :class:`FakeApi`."""
    api = FakeApi(**settings)
    await api.start()
    try:
        yield api
    finally:
        api.gate.set()
        await api.stop()


def group_of(*scores: float, length: int = 4, **more: Any) -> ScoredDataGroup:
    """A group with these scores; the first half of each sequence is the prompt."""
    tokens = [[index + 1 for index in range(length)] for _ in scores]
    masks = [[-100] * (length // 2) + row[length // 2 :] for row in tokens]
    return ScoredDataGroup(tokens=tokens, masks=masks, scores=list(scores), **more)  # type: ignore[typeddict-item]


class ToyConfig(BaseEnvConfig):
    """Settings of the toy environment."""

    group_size: int = 2
    use_wandb: bool = False
    total_steps: int = 3


class ToyEnv(BaseEnv):
    """Items are 0, 1, 2, ..; an item's group holds its number as the first token."""

    name = "toy"
    env_config_cls = ToyConfig

    async def setup(self) -> None:
        self.given: list[int] = []
        self.collected: list[int] = []
        self.most_items = 10_000

    async def get_next_item(self) -> Item:
        if len(self.given) >= self.most_items:
            return None
        self.given.append(len(self.given))
        return self.given[-1]

    async def collect_trajectories(self, item: Item) -> tuple[Any, list[Item]]:
        self.collected.append(item)
        group = group_of(0.0, 1.0)
        group["tokens"] = [[item, *row[1:]] for row in group["tokens"]]
        return group, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        return None


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until something has happened, whoever makes it happen."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)


def items_of(api: FakeApi) -> list[int]:
    """The items whose groups the API holds, sorted."""
    return sorted(group["tokens"][0][0] for group in api.groups)


def decoded(body: bytes) -> bytes:
    """A request body without its compression."""
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body

"""A model server around the tiny model, in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from atroposlib.config.modelserver import ModelServerSettings
from atroposlib.modelserver.app import create_app
from atroposlib.modelserver.build import build_model
from atroposlib.modelserver.engine import Engine
from atroposlib.modelserver.served import ServedModel
from tests.support.models import smollm_dir

__all__ = ["smollm_dir"]


@dataclass
class Served:
    """A running server: the model behind it and a client in front."""

    model: ServedModel
    client: httpx.AsyncClient

    @property
    def engine(self) -> Engine:
        """The engine, for tests that look inside."""
        return self.model.scheduler.engine

    async def post(self, path: str, **body: Any) -> Any:
        """JSON body of a reply with status 200."""
        reply = await self.client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    async def complete(self, prompt: Any, **body: Any) -> list[dict[str, Any]]:
        """The choices of a completion."""
        choices: list[dict[str, Any]] = (await self.post("/v1/completions", prompt=prompt, **body))["choices"]
        return choices


@asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[Served]:
    """A running server for the model in ``directory``."""
    model = build_model(ModelServerSettings(model=str(directory), **{"device": "cpu", **settings}))
    app = create_app(model)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60) as client,
    ):
        yield Served(model, client)


Serving = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
async def tiny(tiny_model_dir: Path) -> AsyncIterator[Served]:
    """A running server for the tiny model."""
    async with serving(tiny_model_dir) as server:
        yield server

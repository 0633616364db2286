"""Builds the trajectory API's application out of its routes and a store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI

from atroposlib.api import (
    routes_env,
    routes_status,
    routes_trainer,
    v1_batches,
    v1_envs,
    v1_groups,
    v1_status,
    v1_trainers,
)
from atroposlib.api.auth import TokenGuard
from atroposlib.api.bodies import BoundedBodies
from atroposlib.api.context import ApiContext
from atroposlib.api.cross_site import CrossSiteGuard
from atroposlib.api.problems import add_error_answers
from atroposlib.api.tokens import Token
from atroposlib.config.api import ApiSettings
from atroposlib.errors import AtroposError
from atroposlib.store.protocol import GroupStore

logger = logging.getLogger(__name__)

SWEEP_S = 1.0
RELEASE_S = 2.0
"""Seconds in which answers that were cut off at shutdown give their batches back."""

ROUTES = (
    routes_status,
    routes_trainer,
    routes_env,
    v1_groups,
    v1_envs,
    v1_trainers,
    v1_batches,
    v1_status,
)

DESCRIPTION = """\
Environments post groups, trainers lease batches. The routes without a prefix are Atropos's. Where tokens are
set, every call but `/`, `/healthz` and `/readyz` carries `Authorization: Bearer TOKEN`.
"""


class TrajectoryApi(FastAPI):
    """The application; its page also describes what no pydantic model of a route does."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI page."""
        if not self.openapi_schema:
            page = super().openapi()
            page["components"]["schemas"] |= v1_groups.GROUP_DEFINITIONS
            page["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            page["security"] = [{}, {"token": []}]
        return super().openapi()


def create_app(
    settings: ApiSettings,
    store: GroupStore,
    clock: Callable[[], float] = time.time,
    tokens: Sequence[Token] = (),
) -> FastAPI:
    """An application with a state of its own.

    Args:
        settings: Limits; host and port are the server's business.
        store: What it serves; the application closes it when it ends.
        clock: Unix seconds.
        tokens: Who may do what; without any, everybody may do everything.
    """
    context = ApiContext(settings, store, clock)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sweeper = context.sweeper = asyncio.create_task(_sweep(context))
        try:
            yield
        finally:
            sweeper.cancel()
            try:
                with suppress(asyncio.CancelledError):
                    await sweeper
            finally:
                await _end(context)

    app = TrajectoryApi(title="atroposlib trajectory API", description=DESCRIPTION, lifespan=lifespan)
    app.state.context = context
    # The last one added sees a request first: who may ask is settled before a body is read.
    app.add_middleware(BoundedBodies, context=context)
    app.add_middleware(TokenGuard, tokens=tokens)
    app.add_middleware(CrossSiteGuard)
    add_error_answers(app, settings.retry_after_s)
    for routes in ROUTES:
        app.include_router(routes.router)
    return app


async def _sweep(context: ApiContext) -> None:
    while True:
        try:
            await context.store.sweep(context.clock())
        except AtroposError as error:
            logger.warning("%s", error)
        except Exception:
            # Otherwise nobody would hear of it before the API ends; /readyz tells it meanwhile.
            logger.exception("the store's housekeeping ended: leases no longer expire")
            raise
        await asyncio.sleep(SWEEP_S)


async def _end(context: ApiContext) -> None:
    if context.deliveries:
        await asyncio.wait(context.deliveries, timeout=RELEASE_S)
    context.offload.close()
    await context.store.close()

"""Builds the trajectory API's application out of its routes and a store."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from atroposlib.api import routes_env, routes_status, routes_trainer
from atroposlib.api.bodies import BoundedBodies
from atroposlib.api.context import ApiContext
from atroposlib.api.cross_site import CrossSiteGuard
from atroposlib.api.problems import add_error_answers
from atroposlib.config.api import ApiSettings
from atroposlib.store.protocol import GroupStore


def create_app(
    settings: ApiSettings, store: GroupStore, clock: Callable[[], float] = time.monotonic
) -> FastAPI:
    """An application with a state of its own.

    Args:
        settings: Limits; host and port are the server's business.
        store: The queue it serves.
        clock: Seconds that never go backwards.
    """
    context = ApiContext(settings, store, clock)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        context.offload.close()

    app = FastAPI(title="atroposlib trajectory API", lifespan=lifespan)
    app.state.context = context
    app.add_middleware(BoundedBodies, context=context)
    app.add_middleware(CrossSiteGuard)
    add_error_answers(app)
    for routes in (routes_status, routes_trainer, routes_env):
        app.include_router(routes.router)
    return app

"""The FastAPI application around a served model."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response

from atroposlib.modelserver import refusals, routes_chat, routes_completions, routes_refresh, routes_scores
from atroposlib.modelserver.http import JsonReply, served
from atroposlib.modelserver.served import ServedModel

VLLM_VERSION = "0.32.0"
"""The version whose routes this server speaks; what GET /version says."""

JOIN_TIMEOUT_S = 5.0


def create_app(model: ServedModel) -> FastAPI:
    """An application that starts and stops the worker of ``model``."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        model.scheduler.start()
        yield
        model.scheduler.stop()
        model.scheduler.join(JOIN_TIMEOUT_S)

    app = FastAPI(title="atropos model-server", lifespan=lifespan)
    app.state.model = model
    app.state.started = int(time.time())
    refusals.install(app)
    for routes in (routes_completions, routes_chat, routes_refresh, routes_scores):
        app.include_router(routes.router)
    app.add_api_route("/health", health)
    app.add_api_route("/version", version)
    app.add_api_route("/v1/models", models)
    return app


async def health(request: Request) -> Response:
    """200 while the worker runs, else 503; without a body, as vLLM's."""
    return Response(status_code=200 if served(request).scheduler.healthy else 503)


async def version() -> Response:
    """The version of the routes."""
    return JsonReply({"version": VLLM_VERSION})


async def models(request: Request) -> Response:
    """The one model that is served."""
    model = served(request)
    permission = {
        "id": f"modelperm-{model.name}",
        "object": "model_permission",
        "created": request.app.state.started,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model.name,
        "object": "model",
        "created": request.app.state.started,
        "owned_by": "atropos",
        "root": model.weights_path,
        "parent": None,
        "max_model_len": model.max_model_len,
        "permission": [permission],
    }
    return JsonReply({"object": "list", "data": [card]})

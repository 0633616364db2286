"""The weight refresh routes, which a stock vLLM has in its development mode.

The order that a trainer uses: /pause?mode=keep, /collective_rpc with reload_weights, /reset_prefix_cache,
/update_weight_version, /resume. Sequences frozen by ``keep`` go on with the keys and values that the old
weights made, where vLLM computes them anew (``reset_running_requests``): they count as the older version's.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response

from atroposlib.modelserver.http import JsonReply, served
from atroposlib.modelserver.refusals import Refusal, bad_body, failure
from atroposlib.modelserver.scheduler import PauseMode
from atroposlib.modelserver.served import ServedModel

router = APIRouter()


@router.post("/pause")
async def pause(request: Request, mode: Annotated[PauseMode, Query()] = "abort") -> Response:
    """Stop taking new requests; see :meth:`Scheduler.pause` for the modes."""
    await asyncio.wrap_future(served(request).scheduler.pause(mode))
    return JsonReply({"status": "paused"})


@router.post("/resume")
async def resume(request: Request) -> Response:
    """Go on after a pause."""
    served(request).scheduler.resume()
    return JsonReply({"status": "resumed"})


@router.get("/is_paused")
async def is_paused(request: Request) -> Response:
    """Whether new requests wait."""
    return JsonReply({"is_paused": served(request).scheduler.paused})


@router.post("/reset_prefix_cache")
async def reset_prefix_cache() -> Response:
    """Always a success: no cache outlives its request here."""
    return JsonReply({"success": True})


@router.post("/update_weight_version")
async def update_weight_version(request: Request, new_version: Annotated[str, Body(embed=True)]) -> Response:
    """Name the weights that are loaded."""
    served(request).version = new_version
    return JsonReply({"success": True, "new_version": new_version})


@router.get("/weight_info")
async def weight_info(request: Request) -> Response:
    """The name of the weights that are loaded; ``default`` until a trainer gave one."""
    return JsonReply({"weight_version": served(request).version})


@router.post("/collective_rpc")
async def collective_rpc(request: Request) -> Response:
    """Call a method of the worker; ``reload_weights`` is the one there is."""
    body = await _object(request)
    method = body.get("method")
    if method is None:
        raise bad_body("Missing 'method' in request body")
    try:
        if method != "reload_weights":
            raise ValueError(f"'Worker' object has no attribute '{method}'")
        await _reload(served(request), body.get("kwargs") or {})
    except (ValueError, RuntimeError) as error:
        raise _rpc_failure(error) from error
    return JsonReply({"results": [None]})


async def _object(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except json.JSONDecodeError as error:
        raise bad_body(f"JSON decode error: {error}") from error
    if not isinstance(body, dict):
        raise bad_body("Request body must be a JSON object")
    return body


async def _reload(model: ServedModel, options: dict[str, Any]) -> None:
    """Load the weights in ``weights_path``, or those loaded last; the old ones stay when that fails."""
    if unknown := sorted(set(options) - {"weights_path"}):
        raise ValueError(f"reload_weights got an unexpected keyword argument '{unknown[0]}'")
    path = options.get("weights_path") or model.weights_path
    await asyncio.wrap_future(model.scheduler.call(lambda: model.reload(path)))
    model.weights_path = path


def _rpc_failure(error: Exception) -> Refusal:
    return failure(f"Call to collective_rpc method failed: Worker failed with error '{error}'")

"""POST /v1/groups: one group or many, as frames or as JSON."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from atroposlib.api.accepting import put, take_frames, take_json
from atroposlib.api.context import ApiContext, Context
from atroposlib.api.reading import FRAME_READERS
from atroposlib.api.v1_models import AcceptedGroups, problems
from atroposlib.errors import WireError
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from atroposlib.wire.posted import PostedGroup
from atroposlib.wire.schema import ScoredData

router = APIRouter(tags=["groups"])

JSON_TYPE = "application/json"
SPOKEN = (FRAME_TYPE, BATCH_TYPE, JSON_TYPE)

_SCHEMA = ScoredData.model_json_schema(ref_template="#/components/schemas/{model}")
GROUP_DEFINITIONS: dict[str, Any] = _SCHEMA.pop("$defs", {})
"""What a group's schema refers to, for the page's components."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}
"""docs/wire.md says what is in it."""

BODY: dict[str, Any] = {
    "required": True,
    "content": {
        FRAME_TYPE: _BINARY,
        BATCH_TYPE: _BINARY,
        JSON_TYPE: {"schema": {"anyOf": [_SCHEMA, {"type": "array", "items": _SCHEMA}]}},
    },
}


@router.post(
    "/v1/groups",
    response_model=AcceptedGroups,
    responses={201: {"model": AcceptedGroups}, **problems(400, 408, 413, 415, 422, 429, 503)},
    openapi_extra={"requestBody": BODY},
)
async def post_groups(request: Request, context: Context) -> JSONResponse:
    """Take groups, all or none: 201 when at least one is new, 200 when all are duplicates.

    A `group_id` is made once for a group and kept over retries. A post without one is a duplicate when the
    same environment posted the same body within 60 s. JSON may be compressed (`Content-Encoding: gzip`).
    """
    accepted = await put(context, await _take(context, request))
    listed = [
        {"group_id": group.group_id, "status": "new" if group.new else "duplicate"} for group in accepted
    ]
    return JSONResponse({"groups": listed}, 201 if any(group.new for group in accepted) else 200)


async def _take(context: ApiContext, request: Request) -> list[PostedGroup]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if media_type not in SPOKEN:
        raise _unknown(context, "this media type is not spoken", media_type, ", ".join(SPOKEN))
    if media_type in FRAME_READERS:
        if encoding != "identity":
            raise _unknown(context, "a frame is compressed inside", encoding, "no Content-Encoding")
        return await take_frames(context, request, media_type)
    if encoding not in ("identity", "gzip"):
        raise _unknown(context, "this content encoding is not spoken", encoding, "gzip")
    return await take_json(context, request, many=None)


def _unknown(context: ApiContext, what: str, got: str, expected: str) -> WireError:
    context.metrics.refuse("wire.unknown_type")
    return WireError(what, code="wire.unknown_type", got=got or "none", expected=expected)

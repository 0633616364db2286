"""The OpenAPI page describes the /v1 bodies, and requests made up from it never get a 5xx."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from atroposlib.api.app import create_app
from atroposlib.config.api import ApiSettings
from atroposlib.store.memory import MemoryStore
from atroposlib.wire.batch import encode_batch
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from tests.api.support import ApiClient, group, serving


@pytest.fixture(scope="module")
def served() -> Iterator[ApiClient]:
    with serving() as api:
        yield api


FRAME = encode_group(group())


def changed(body: bytes, edits: list[tuple[int, int]]) -> bytes:
    """A body with some bytes replaced."""
    changed = bytearray(body)
    for position, value in edits:
        changed[position % len(changed)] = value
    return bytes(changed)


def broken(body: bytes) -> st.SearchStrategy[bytes]:
    """Bodies that are nearly that one."""
    edits = st.lists(st.tuples(st.integers(0, len(body) - 1), st.integers(0, 255)), max_size=3)
    return st.binary(max_size=200) | st.builds(changed, st.just(body), edits)


schemathesis.openapi.media_type(FRAME_TYPE, broken(FRAME))
schemathesis.openapi.media_type(BATCH_TYPE, broken(encode_batch([FRAME, FRAME])))
DESCRIBED = schemathesis.openapi.from_dict(create_app(ApiSettings(), MemoryStore(1, 1)).openapi())
OPERATIONS = {operation.ok().label: operation.ok() for operation in DESCRIBED.get_all_operations()}


@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_gets_a_5xx(served: ApiClient, label: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(OPERATIONS[label].as_strategy() | OPERATIONS[label].as_strategy(GenerationMode.NEGATIVE))
    def send(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and "wait_s" in case.body:
            case.body["wait_s"] = 0
        answer = case.call(base_url=served.url, timeout=20)
        assert answer.status_code < 500, (case, answer.text)

    send()


def test_bodies_of_v1_are_described(served: ApiClient) -> None:
    paths: dict[str, Any] = served.get("/openapi.json")["paths"]
    content = paths["/v1/groups"]["post"]["requestBody"]["content"]
    assert set(content) == {FRAME_TYPE, BATCH_TYPE, "application/json"}
    leased = paths["/v1/batches/lease"]["post"]["responses"]["200"]
    assert {BATCH_TYPE, "application/json"} <= set(leased["content"])
    assert "Atropos-Batch-Id" in leased["headers"]
    described = [
        operation["requestBody"]
        for path, methods in paths.items()
        for method, operation in methods.items()
        if path.startswith("/v1/") and method == "post" and not path.endswith("/heartbeat")
    ]
    assert len(described) == 8


def test_every_reference_of_the_page_leads_somewhere(served: ApiClient) -> None:
    page = served.raw("GET", "/openapi.json").text
    named = set(re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', page))
    assert {"ChatMessage", "Teacher"} <= named <= set(json.loads(page)["components"]["schemas"])


def test_an_unknown_route_is_a_problem_document(served: ApiClient) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("DELETE", "/v1/status", 405)):
        answer = served.raw(method, path)
        assert (answer.status_code, answer.json()["code"]) == (status, "api.unknown_route")
        assert answer.headers["Content-Type"] == "application/problem+json"

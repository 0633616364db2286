"""docs/api.md names every route, option and header."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import APIRoute

from atroposlib.api.app import create_app
from atroposlib.api.v1_batches import LEASED
from atroposlib.config.api import ApiSettings
from atroposlib.store.memory import MemoryStore

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def test_every_route_is_documented_and_no_other() -> None:
    app = create_app(ApiSettings(), MemoryStore(1, 1))
    served = {
        f"{method} {route.path.replace(':path', '')}"
        for route in app.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    named = set(re.findall(r"`((?:GET|POST|DELETE) /[^ `?]*)`", PAGE))
    assert named == served


def test_every_option_is_documented_and_no_other() -> None:
    rows = re.findall(r"^\| (`--[^|]*) \|", PAGE, flags=re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"`--([a-z_]+)`", row)}
    assert named - {"store", "durability"} == set(ApiSettings.model_fields) - {"store", "durability"}
    assert {"store", "durability"} <= named


def test_every_header_of_a_lease_is_documented() -> None:
    headers = LEASED["headers"]
    assert isinstance(headers, dict)
    assert all(f"| `{name}` |" in PAGE for name in headers)

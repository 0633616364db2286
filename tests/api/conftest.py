"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.support import ApiClient, serving


@pytest.fixture(scope="session", params=["memory", "sqlite"])
def running_api(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiClient]:
    """One API over each store, with default settings, for all tests."""
    path = tmp_path_factory.mktemp("store") / "queue.sqlite3"
    with serving("memory" if request.param == "memory" else f"sqlite:///{path}") as client:
        yield client


@pytest.fixture
def api(running_api: ApiClient) -> ApiClient:
    """The API in the state before any trainer came."""
    assert running_api.raw("GET", "/reset_data").status_code == 200
    return running_api

"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.support import ApiClient, serving


@pytest.fixture(scope="session")
def running_api() -> Iterator[ApiClient]:
    """One API with default settings for all tests."""
    with serving() as client:
        yield client


@pytest.fixture
def api(running_api: ApiClient) -> ApiClient:
    """The API in the state before any trainer came."""
    assert running_api.raw("GET", "/reset_data").status_code == 200
    return running_api

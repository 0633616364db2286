"""base_url to server root."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.teacher.address import server_root


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        (" http://localhost:8000/v1 ", "http://localhost:8000"),
        ("http://v1-teacher:8000/v1", "http://v1-teacher:8000"),
        ("http://host/v1-models/v1", "http://host/v1-models"),
        ("http://host/prefix/v1", "http://host/prefix"),
        ("http://host/notv1", "http://host/notv1"),
        ("https://[::1]:8000/v1", "https://[::1]:8000"),
    ],
)
def test_only_a_last_path_segment_v1_is_taken_off(base_url: str, root: str) -> None:
    assert server_root(base_url) == root


@pytest.mark.parametrize(
    "base_url",
    [None, "", "localhost:8000", "ftp://host/v1", "http://", "http://host:port/v1", "http://host?x=1"],
)
def test_what_is_no_server_url_is_refused(base_url: str | None) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        server_root(base_url)


def test_a_password_in_the_url_is_refused_and_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        server_root("http://user:hunter2@host:8000/v1")
    assert "hunter2" not in str(caught.value)
    assert "api_key" in str(caught.value)

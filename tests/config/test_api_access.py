"""Credentials go into a header and out of the URL, whichever way they were given."""

from __future__ import annotations

import base64

import pytest

from atroposlib.config.api_access import TOKEN_VARIABLE, api_access
from atroposlib.errors import UsageError

PLAIN = "http://host:8000"


@pytest.mark.parametrize(
    ("in_environment", "given", "header"),
    [
        (None, None, None),
        ("", None, None),
        ("env", None, "Bearer env"),
        ("env", "arg", "Bearer arg"),
        (None, "arg", "Bearer arg"),
        ("env", "", None),
    ],
)
def test_token_of_argument_or_environment(
    monkeypatch: pytest.MonkeyPatch, in_environment: str | None, given: str | None, header: str | None
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    if in_environment is not None:
        monkeypatch.setenv(TOKEN_VARIABLE, in_environment)
    url, headers = api_access(PLAIN, given)
    assert (url, headers.get("Authorization")) == (PLAIN, header)


@pytest.mark.parametrize("password", ["simple", "p@ss:w/rd"])
def test_credentials_of_the_url_are_sent_as_basic_and_told_nobody(password: str) -> None:
    quoted = password.replace("@", "%40").replace("/", "%2F")
    url, headers = api_access(f"https://any:{quoted}@[::1]:9/api/", "token")
    assert url == "https://[::1]:9/api"
    kind, encoded = headers["Authorization"].split()
    assert (kind, base64.b64decode(encoded).decode()) == ("Basic", f"any:{password}")


@pytest.mark.parametrize(
    "url", ["localhost:8000", "", "http://", "http://[bad", "http://host:port", "ftp://host"]
)
def test_a_url_that_is_none_is_told_at_once(url: str) -> None:
    with pytest.raises(UsageError, match=r"http://127\.0\.0\.1:8000"):
        api_access(url, "")


def test_a_token_from_a_file_may_end_with_its_newline() -> None:
    assert api_access(PLAIN, " token\r\n")[1] == {"Authorization": "Bearer token"}


@pytest.mark.parametrize("token", ["se\ncret", "se cret", "secr€t"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_told(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        api_access(PLAIN, token)
    assert token not in str(caught.value)

"""Tokens: made once and kept as hashes, and what each role may do."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fastapi import FastAPI
from fastapi.routing import APIRoute

from atroposlib.api.app import create_app
from atroposlib.api.auth import OPEN, allowed
from atroposlib.api.serve import run
from atroposlib.api.tokens import Token, make, read_tokens, role_of
from atroposlib.cli.main import main
from atroposlib.config.api import ApiSettings, Role, TokenSettings
from atroposlib.errors import UsageError
from atroposlib.store.memory import MemoryStore
from tests.api.support import ApiClient, group, registration, serving

ROLES: tuple[Role, ...] = ("env", "trainer", "admin")


def token(role: Role) -> Token:
    return Token(name=role, role=role, sha256=hashlib.sha256(f"secret-{role}".encode()).hexdigest())


@pytest.fixture(scope="module")
def guarded() -> Iterator[ApiClient]:
    with serving(tokens=[token(role) for role in ROLES]) as api:
        yield api


def status(api: ApiClient, method: str, path: str, role: str | None, body: bytes | None = None) -> int:
    headers = {} if role is None else {"Authorization": f"Bearer secret-{role}"}
    return api.raw(method, path, body, **headers).status_code


@pytest.mark.parametrize("path", sorted(OPEN))
def test_health_needs_no_token(guarded: ApiClient, path: str) -> None:
    assert status(guarded, "GET", path, None) == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer wrong",
        "secret-admin",
        "Basic secret-admin",
        "Basic ?",
        "Basic \xe9",
        "Digest secret-admin",
    ],
)
def test_without_a_known_token_nobody_is_let_in(guarded: ApiClient, header: str) -> None:
    answer = guarded.raw("GET", "/status", Authorization=header)
    assert (answer.status_code, answer.json()["code"]) == (401, "api.unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert "secret" not in answer.text


def test_a_token_may_be_the_password_of_the_url(guarded: ApiClient) -> None:
    """An unmodified 0.4.0 client is given ``http://any:TOKEN@host:port``."""
    credentials = base64.b64encode(b"any:secret-env").decode()
    assert guarded.raw("GET", "/status", Authorization=f"Basic {credentials}").status_code == 200


def test_each_role_may_do_its_own_things(guarded: ApiClient) -> None:
    register, posted = json.dumps(registration()).encode(), json.dumps(group()).encode()
    assert status(guarded, "POST", "/register", "env", register) == 403
    assert status(guarded, "POST", "/register", "trainer", register) == 200
    assert status(guarded, "GET", "/batch", "env") == 403
    assert status(guarded, "GET", "/batch", "trainer") == 200
    assert status(guarded, "POST", "/scored_data", "trainer", posted) == 403
    assert status(guarded, "POST", "/scored_data", "env", posted) == 200
    assert status(guarded, "POST", "/v1/groups", "admin", posted) in (200, 201)
    for role in ("env", "trainer"):
        assert status(guarded, "GET", "/reset_data", role) == 403
        assert status(guarded, "POST", "/v1/dead-letters/requeue", role, b"{}") == 403
    assert status(guarded, "GET", "/reset_data", "admin") == 200


def test_a_refusal_names_the_role_that_is_needed(guarded: ApiClient) -> None:
    answer = guarded.raw("GET", "/reset_data", Authorization="Bearer secret-env")
    assert (answer.json()["code"], answer.json()["expected"]) == ("api.forbidden", "admin")


def test_a_body_is_not_waited_for_without_a_token(guarded: ApiClient) -> None:
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(b"POST /scored_data HTTP/1.1\r\nHost: api\r\nContent-Length: 1000000\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 401 ")


def routes() -> list[APIRoute]:
    app: FastAPI = create_app(ApiSettings(), MemoryStore(1, 1))
    return [route for route in app.routes if isinstance(route, APIRoute)]


def test_no_route_is_left_to_the_admin_by_oversight() -> None:
    for_admin = {route.path for route in routes() if allowed(route.path) == {"admin"}}
    assert for_admin - OPEN == {"/reset_data", "/v1/dead-letters/requeue"}


def test_no_path_is_let_in_by_a_prefix_of_another_role() -> None:
    assert allowed("/register-env") == {"env", "admin"}
    assert allowed("/register") == {"trainer", "admin"}
    assert allowed("/nothing") == {"admin"}


def test_the_command_makes_a_token_that_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.yaml"
    secrets = []
    for role in ROLES:
        assert main(["token", "--role", role, "--name", f"my-{role}", "--file", str(file)]) == 0
        secrets.append(capsys.readouterr().out.strip())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(secret in file.read_text(encoding="utf-8") for secret in secrets)
    tokens = read_tokens(file)
    assert [role_of(tokens, f"Bearer {secret}") for secret in secrets] == list(ROLES)
    assert role_of(tokens, "Bearer ") is None
    assert role_of(tokens, None) is None


def test_a_name_is_given_once(tmp_path: Path) -> None:
    settings = TokenSettings(role="env", name="x", file=tmp_path / "tokens.yaml")
    make(settings)
    before = settings.file.read_text(encoding="utf-8")
    with pytest.raises(UsageError):
        make(settings)
    assert settings.file.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    "text",
    ["tokens: [", "tokens: 5", "other: []", yaml.safe_dump({"tokens": [{"name": "x", "role": "env"}]})],
)
def test_a_broken_token_file_is_told_without_its_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_tokens(file)
    assert str(file) in str(caught.value)


def test_a_missing_token_file_is_no_open_door(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_tokens(tmp_path / "none.yaml")
    assert caught.value.code == "usage.file"


@pytest.mark.parametrize("text", ["", "tokens: []\n"])
def test_a_token_file_without_tokens_lets_nobody_in_unnoticed(tmp_path: Path, text: str) -> None:
    """Its API would ask nobody for a token, though it was told to ask everybody."""
    file = tmp_path / "tokens.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        run(ApiSettings(port=0, store="memory", tokens=file))
    assert (caught.value.code, caught.value.where) == ("usage.bad_value", str(file))

"""A trajectory API on a real socket, and the bodies that Atropos's clients send."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from atroposlib.api.app import create_app
from atroposlib.api.http_server import ApiServer
from atroposlib.api.serve import listen
from atroposlib.api.tokens import Token
from atroposlib.config.api import ApiSettings
from atroposlib.store.open import open_store


@dataclass
class Clock:
    """Seconds that pass only when a test says so."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ApiClient:
    """Calls one API and keeps its connection."""

    url: str
    clock: Clock
    session: requests.Session = field(default_factory=requests.Session)

    def get(self, path: str, body: Any = None) -> Any:
        """The JSON of a GET that must succeed."""
        answer = self.session.get(self.url + path, json=body, timeout=20)
        assert answer.status_code == 200, (answer.status_code, answer.text[:500])
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        """The JSON of a POST that must succeed; not finite numbers are sent as Python writes them."""
        answer = self.raw("POST", path, json.dumps(body).encode())
        assert answer.status_code == 200, (answer.status_code, answer.text[:500])
        return answer.json()

    def raw(self, method: str, path: str, data: bytes | None = None, **headers: str) -> requests.Response:
        """Any answer to a body given as bytes; header names with underscores."""
        named = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.session.request(method, self.url + path, data=data, headers=named, timeout=20)

    def start(self, batch_size: int = 8, **changes: Any) -> None:
        """Register a trainer and ask for a first batch, which lets environments in."""
        self.post("/register", registration(batch_size=batch_size, **changes))
        assert self.get("/batch") == {"batch": None}

    def add_env(self, **changes: Any) -> int:
        """Register an environment; returns its id."""
        answer = self.post("/register-env", env_registration(**changes))
        assert answer["status"] == "success"
        return int(answer["env_id"])

    def counts(self) -> dict[str, Any]:
        """The group counts, checked for conservation."""
        groups: dict[str, Any] = self.get("/v1/status")["groups"]
        settled = groups["queued"] + groups["leased"] + groups["trained"] + groups["dead"]
        assert groups["received"] == settled + sum(groups["dropped"].values())
        return groups


@contextmanager
def serving(store: str = "memory", tokens: Sequence[Token] = (), **settings: Any) -> Iterator[ApiClient]:
    """An API on a free port, in a thread.

    Args:
        store: As the option: ``memory``, or ``sqlite:///PATH``.
        tokens: Who may do what.
        settings: Other settings.
    """
    configured = ApiSettings(port=0, store=store, **settings)
    clock, listener, started = Clock(), listen(configured.host, configured.port), Started()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(configured, clock, tokens, listener, started))
    )
    thread.start()
    client = ApiClient(f"http://127.0.0.1:{listener.getsockname()[1]}", clock)
    try:
        assert started.server.result(timeout=20)
        yield client
    finally:
        client.session.close()
        started.server.result().should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


@dataclass
class Started:
    """Tells the test's thread of the server, or of why there is none."""

    server: Future[ApiServer] = field(default_factory=Future)


async def _serve(
    settings: ApiSettings, clock: Clock, tokens: Sequence[Token], listener: socket.socket, started: Started
) -> None:
    try:
        store = await open_store(
            settings.store,
            max_groups=settings.max_queued_groups,
            max_bytes=settings.max_queued_bytes,
            durability=settings.durability,
        )
        server = ApiServer(create_app(settings, store, clock, tokens), settings)
    except BaseException as error:
        started.server.set_exception(error)
        raise
    started.server.set_result(server)
    await server.serve(sockets=[listener])


@contextmanager
def run_api(*options: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A running `run-api`: the process, its URL, and what it said before."""
    command = [sys.executable, "-m", "atroposlib.cli.run_api", "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stderr is not None
        lines = []
        while not (lines and lines[-1].startswith("trajectory API on ")):
            line = process.stderr.readline()
            assert line, lines
            lines.append(line.rstrip("\n"))
        try:
            yield process, lines[-1].split()[-1], lines[:-1]
        finally:
            process.kill()


def registration(**changes: Any) -> dict[str, Any]:
    """The body of POST /register."""
    return {
        "wandb_group": "group",
        "wandb_project": "project",
        "batch_size": 8,
        "max_token_len": 2048,
        "checkpoint_dir": "checkpoints",
        "save_checkpoint_interval": 100,
        "starting_step": 0,
        "num_steps": 1000,
    } | changes


def env_registration(**changes: Any) -> dict[str, Any]:
    """The body of POST /register-env."""
    return {"max_token_length": 2048, "desired_name": "env", "weight": 1.0, "group_size": 4} | changes


def group(sequences: int = 4, *, token: int = 1, **changes: Any) -> dict[str, Any]:
    """A small valid group whose tokens tell it from others."""
    return {
        "tokens": [[token, token + 1, token + 2]] * sequences,
        "masks": [[-100, token + 1, token + 2]] * sequences,
        "scores": [float(index) for index in range(sequences)],
    } | changes

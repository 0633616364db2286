"""A trajectory API on a real socket, and the bodies that Atropos's clients send."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import requests
import uvicorn

from atroposlib.api.app import create_app
from atroposlib.api.serve import listen
from atroposlib.config.api import ApiSettings
from atroposlib.store.memory import MemoryStore


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
def serving(**settings: Any) -> Iterator[ApiClient]:
    """An API with a memory store on a free port, in a thread."""
    configured = ApiSettings(port=0, **settings)
    clock = Clock()
    store = MemoryStore(configured.max_queued_groups, configured.max_queued_bytes)
    config = uvicorn.Config(create_app(configured, store, clock), log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    listener = listen(configured.host, configured.port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    client = ApiClient(f"http://127.0.0.1:{listener.getsockname()[1]}", clock)
    try:
        yield client
    finally:
        client.session.close()
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


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

"""A scripted HTTP server for the trainer's blocking clients, and groups with teacher targets."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import numpy as np

from atroposlib.types import Group
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.batch import encode_batch
from atroposlib.wire.frame import encode_group
from tests.support.tiny import VOCAB_SIZE


@dataclass
class Reply:
    """One answer: JSON or bytes with a status; ``cut`` closes the connection in the middle of the body."""

    body: Any = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    action: Literal["answer", "cut", "hang"] = "answer"


@dataclass
class Script:
    """What the server answers, by path without query, and what it was asked.

    Attributes:
        url: Root URL.
        replies: Next replies of a path, in order.
        always: The reply of a path whose script is used up; ``{}`` with status 200 when there is none.
        asked: ``METHOD path?query`` of every request, in order.
        bodies: JSON bodies of the requests of a path.
        headers: Headers of every request, in order.
        changed: Notified at every request.
        released: Set to let hanging answers go.
        hanging: Set as soon as an answer hangs.
    """

    url: str = ""
    replies: defaultdict[str, deque[Reply]] = field(default_factory=lambda: defaultdict(deque))
    always: dict[str, Reply] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    bodies: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    headers: list[dict[str, str]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    released: threading.Event = field(default_factory=threading.Event)
    hanging: threading.Event = field(default_factory=threading.Event)

    def then(self, path: str, *replies: Reply) -> None:
        """Script the next replies of ``path``."""
        self.replies[path].extend(replies)

    def next_reply(self, path: str) -> Reply:
        """The reply that is due for ``path``."""
        return self.replies[path].popleft() if self.replies[path] else self.always.get(path, Reply())


@contextmanager
def scripted_http() -> Iterator[Script]:
    """A running server that follows the yielded script."""
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            path = self.path.split("?")[0]
            length = int(self.headers.get("Content-Length") or 0)
            script.bodies[path].append(json.loads(self.rfile.read(length)) if length else None)
            script.headers.append(dict(self.headers))
            with script.changed:
                script.asked.append(f"{self.command} {self.path}")
                script.changed.notify_all()
            reply = script.next_reply(path)
            if reply.action == "hang":
                script.hanging.set()
                script.released.wait(20)
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if reply.action == "cut" else body)
            self.close_connection = reply.action == "cut"

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the tests' output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield script
    finally:
        script.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


NO_BATCH = Reply(b"", status=204)
NOT_FOUND = Reply({"detail": "Not Found"}, status=404)


def lease_reply(*groups: Any, batch_id: str = "first", attempt: int = 1, step: int = 0) -> Reply:
    """What our API answers to a lease."""
    headers = {
        "Atropos-Batch-Id": batch_id,
        "Atropos-Attempt": str(attempt),
        "Atropos-Lease-Expires": "2000000000.5",
        "Atropos-Step": str(step),
    }
    frames = [encode_group(group, logprob_dtype="float32") for group in groups]
    return Reply(encode_batch(frames), headers=headers)


def as_arrays(groups: list[Any]) -> list[Group]:
    """The groups as a trainer's client hands them out."""
    return [to_arrays(group, strict=True) for group in groups]


def ids_of(groups: list[Group]) -> list[Any]:
    """Their group ids."""
    return [group.rest["group_id"] for group in groups]


def make_groups(count: int, *, sequences: int = 4, seed: int = 0, columns: int = 5) -> list[Any]:
    """Groups as an environment posts them: random tokens, and one fixed teacher that always prefers id 7.

    The teacher's columns are the selected token and ids 7.. with most of the mass on 7, so a student can
    learn it whatever the tokens are.
    """
    rng = np.random.default_rng(seed)
    groups = []
    for index in range(count):
        group: dict[str, Any] = {
            "tokens": [],
            "masks": [],
            "scores": [],
            "distill_token_ids": [],
            "distill_logprobs": [],
            "group_id": f"group-{seed}-{index}",
            "policy_version": index,
        }
        for _ in range(sequences):
            tokens = rng.integers(20, VOCAB_SIZE, int(rng.integers(8, 16))).tolist()
            preferred = list(range(7, 7 + columns))
            mass = np.array([0.001, 0.7, *[0.2 / columns] * (columns - 1)])
            prompt = 3
            group["tokens"].append(tokens)
            group["masks"].append([-100] * prompt + tokens[prompt:])
            group["scores"].append(0.0)
            rows = [[-1] * (columns + 1)] * prompt + [[token, *preferred] for token in tokens[prompt:]]
            group["distill_token_ids"].append(rows)
            absent = [[-9999.0] * (columns + 1)] * prompt
            group["distill_logprobs"].append(absent + [np.log(mass).tolist()] * (len(tokens) - prompt))
        groups.append(group)
    return groups

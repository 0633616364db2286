"""Plans of demos for tests, and fake children that behave like the real parts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from atroposlib.config.demo import DemoSettings
from atroposlib.demo.children import RUN_MARKER
from atroposlib.demo.files import new_run
from atroposlib.demo.plan import Models, Plan, Ports
from atroposlib.demo.processes import ChildSpec, free_ports
from tests.demo.journals import Event, status, two_steps

API = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({status}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""
FOREVER = "import time; print('at work', flush=True); time.sleep(600)"
WRITE = "import pathlib; pathlib.Path({file!r}).write_text({text!r})"


def make_plan(root: Path, **changes: Any) -> Plan:
    """A plan whose models are directories that nobody opens."""
    settings = DemoSettings(**{"steps": 2, "grace_s": 2.0, "ready_timeout_s": 30.0, **changes})
    files = new_run(root)
    files.journal("demo").parent.mkdir()
    return Plan(
        settings=settings,
        files=files,
        models=Models(
            Path("/models/teacher"),
            Path("/models/student"),
            "Big",
            "Small",
            "as given",
            Path("/models/student"),
        ),
        ports=Ports(*free_ports(3)),
        environment_file=Path("/environments/toy.py"),
        prompts=[[{"role": "user", "content": "One and one?"}]],
    )


def fake_children(plan: Plan, **codes: str) -> list[ChildSpec]:
    """Children that write the journals of a made-up run of two steps; ``codes`` replaces what a part does."""
    parts = two_steps()
    known = status(received=6, trained=4, queued=2)
    programs = {
        "api": API.format(status=repr(known), port=plan.ports.api),
        "student": FOREVER,
        "teacher": FOREVER,
        "evaluator": writes(plan, "evaluator", parts["evaluator"]),
        "trainer": writes(plan, "trainer", parts["trainer"]),
        "environment": FOREVER,
        **codes,
    }
    ends = {"evaluator", "trainer"}
    return [
        ChildSpec(
            name,
            (sys.executable, "-c", code),
            {RUN_MARKER: str(plan.files.root)},
            ready_url=f"{plan.api_url}/healthz" if name == "api" else None,
            ends=name in ends,
        )
        for name, code in programs.items()
    ]


def writes(plan: Plan, part: str, events: list[Event]) -> str:
    """A program that writes a journal and ends."""
    text = "".join(json.dumps(event) + "\n" for event in events)
    return WRITE.format(file=str(plan.files.journal(part)), text=text)

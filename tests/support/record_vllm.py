"""Records the replies of a real vLLM to the requests of ``vllm_cases`` as JSON fixtures: make record-vllm."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import requests

from atroposlib.demo.assets import ensure_model
from tests.support.running_vllm import MAX_LOGPROBS, MAX_MODEL_LEN, NAME, running_vllm
from tests.support.vllm_cases import CASES, Case, Limits

DATA = Path(__file__).parents[1] / "data" / "vllm_0_32"
LIMITS = Limits(NAME, MAX_MODEL_LEN, vocab_size=49152, max_logprobs=MAX_LOGPROBS)


def send(url: str, case: Case) -> dict[str, Any]:
    """The status and JSON body of one case, the body null when it is empty."""
    body = {"json": case.json} if case.content is None else {"data": case.content}
    reply = requests.request(case.method, url + case.path, headers=case.headers, timeout=300, **body)
    return {"status": reply.status_code, "body": reply.json() if reply.content else None}


def scrub(value: Any, model: str) -> Any:
    """``value`` without what differs from run to run: times, random ids and paths."""
    if isinstance(value, list):
        return [scrub(member, model) for member in value]
    if not isinstance(value, dict):
        return value
    fixed = {"created": 0, "root": model, "request_id": "0"}
    fixed |= {"id": value["id"].partition("-")[0] + "-0"} if "-" in str(value.get("id", "")) else {}
    return {key: fixed.get(key, scrub(member, model)) for key, member in value.items()}


def record(url: str, group: str) -> None:
    """Send the cases of a group and write their replies, one a line."""
    replies = {case.name: scrub(send(url, case), LIMITS.model) for case in CASES[group](LIMITS)}
    lines = [
        f" {json.dumps(name)}: {json.dumps(reply, ensure_ascii=False)}" for name, reply in replies.items()
    ]
    (DATA / f"{group}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Record the groups that are named, or all of them, from a vLLM that is started for it."""
    DATA.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_vllm(ensure_model(), Path(folder) / "vllm.log", "--enable-scale-out") as server,
    ):
        for group in sys.argv[1:] or CASES:
            record(server.url, group)


if __name__ == "__main__":
    main()

"""Record the replies of a real vLLM to the requests of ``vllm_cases`` as JSON fixtures.

Start the server first, with ``VLLM_SERVER_DEV_MODE=1`` and ``--served-model-name smollm2 --dtype float32
--max-model-len 1024 --max-logprobs 20`` on SmolLM2-135M-Instruct, then::

    python -m tests.support.record_vllm --url http://127.0.0.1:8000 --model smollm2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import requests

from tests.support.vllm_cases import CASES, Case, Limits

DATA = Path(__file__).parents[1] / "data" / "vllm_0_32"


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
    fixed = {"created": 0, "root": model}
    fixed |= {"id": value["id"].partition("-")[0] + "-0"} if "-" in str(value.get("id", "")) else {}
    return {key: fixed.get(key, scrub(member, model)) for key, member in value.items()}


def main() -> None:
    """Send every case and write one file a group of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True, help="name that the server serves the model under")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--only", choices=sorted(CASES), action="append")
    options = parser.parse_args()
    limits = Limits(options.model, options.max_model_len, options.vocab_size)
    DATA.mkdir(parents=True, exist_ok=True)
    for group in options.only or CASES:
        replies = {case.name: scrub(send(options.url, case), options.model) for case in CASES[group](limits)}
        lines = [
            f" {json.dumps(name)}: {json.dumps(reply, ensure_ascii=False)}" for name, reply in replies.items()
        ]
        (DATA / f"{group}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

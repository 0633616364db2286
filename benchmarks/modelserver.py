"""Speed of the embedded model server: eight requests at once, eight in a row, and plain transformers.

One table, all figures from the same run on the same machine. ``--json FILE`` writes them, ``--check`` exits 1
when a goal is missed and says which in the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from atroposlib.demo.assets import ensure_model
from atroposlib.modelserver.serve import reserve_port

REQUESTS = 8
PROMPT_TOKENS = 64
NEW_TOKENS = 48
SCORED_TOKENS = {"scoring": 128, "short scoring": 16}
TOP_K = 20
GOAL_AT_ONCE = 0.5


@contextmanager
def server(model: str) -> Iterator[str]:
    """The URL of a model server in a process of its own."""
    with reserve_port("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "atroposlib.cli.main",
        "model-server",
        "--model",
        model,
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


async def wait_until_healthy(session: aiohttp.ClientSession, url: str) -> None:
    """Return when the server answers."""
    for _ in range(600):
        try:
            async with session.get(f"{url}/health") as reply:
                if reply.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(0.2)
    raise TimeoutError(url)


def bodies(kind: str) -> list[dict[str, Any]]:
    """Eight requests of one kind, with random prompts of the same length."""
    rng = random.Random(0)
    length = SCORED_TOKENS.get(kind, PROMPT_TOKENS)
    prompts = [[rng.randrange(1000, 40000) for _ in range(length)] for _ in range(REQUESTS)]
    if kind in SCORED_TOKENS:
        return [
            {"prompt": ids, "prompt_logprobs": TOP_K, "max_tokens": 1, "temperature": 0} for ids in prompts
        ]
    common = {
        "max_tokens": NEW_TOKENS,
        "temperature": 1.0,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }
    return [{"prompt": ids, "seed": 1, **common} for ids in prompts]


async def seconds(work: Callable[[], Awaitable[Any]], repeats: int) -> float:
    """Median time of ``work``, after one run that does not count."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        await work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


async def measure_server(url: str, repeats: int) -> dict[str, float]:
    """Seconds of each kind of request, in a row and at once."""
    found: dict[str, float] = {}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await wait_until_healthy(session, url)

        async def post(body: dict[str, Any]) -> None:
            async with session.post(f"{url}/v1/completions", json=body) as reply:
                reply.raise_for_status()
                await reply.read()

        for kind in ("sampling", *SCORED_TOKENS):
            requests = bodies(kind)

            async def in_a_row(requests: list[dict[str, Any]] = requests) -> None:
                for body in requests:
                    await post(body)

            async def at_once(requests: list[dict[str, Any]] = requests) -> None:
                await asyncio.gather(*(post(body) for body in requests))

            found[f"{kind}, in a row"] = await seconds(in_a_row, repeats)
            found[f"{kind}, at once"] = await seconds(at_once, repeats)
        one = {**bodies("sampling")[0], "n": REQUESTS}
        found["sampling, one request with n=8"] = await seconds(lambda: post(one), repeats)
    return found


async def measure_transformers(model_name: str, repeats: int) -> dict[str, float]:
    """Seconds of the same work with ``generate`` and one forward pass, both on one batch of eight."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_name, dtype=torch.float32)
    sampled = torch.tensor([body["prompt"] for body in bodies("sampling")])
    scored = torch.tensor([body["prompt"] for body in bodies("scoring")])

    async def generate() -> None:
        with torch.inference_mode():
            model.generate(sampled, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=True)

    async def score() -> None:
        with torch.inference_mode():
            model(scored).logits[:, :-1].log_softmax(-1).topk(TOP_K)

    return {
        "sampling, transformers generate": await seconds(generate, repeats),
        "scoring, transformers forward": await seconds(score, repeats),
    }


def rows(found: dict[str, float]) -> list[dict[str, Any]]:
    """The table: seconds and tokens a second."""
    tokens = {kind: REQUESTS * count for kind, count in {"sampling": NEW_TOKENS, **SCORED_TOKENS}.items()}
    return [
        {
            "name": name,
            "seconds": round(value, 3),
            "tokens_per_s": round(tokens[name.split(",")[0]] / value, 1),
        }
        for name, value in found.items()
    ]


def goals(found: dict[str, float]) -> list[dict[str, Any]]:
    """What the server promises; scoring of long prompts is bound by arithmetic, which no batch makes less."""
    result = []
    for kind in ("sampling", "short scoring"):
        ratio = found[f"{kind}, at once"] / found[f"{kind}, in a row"]
        name = f"eight {kind} requests at once / in a row"
        result.append(
            {"name": name, "value": round(ratio, 3), "goal": GOAL_AT_ONCE, "ok": ratio <= GOAL_AT_ONCE}
        )
    return result


def main() -> int:
    """Measure, print, write, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="directory or hub id (the demo's teacher when omitted)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    model = options.model or str(ensure_model())
    with server(model) as url:
        found = asyncio.run(measure_server(url, options.repeats))
    found |= asyncio.run(measure_transformers(model, options.repeats))
    result = {"title": "Embedded model server", "rows": rows(found), "goals": goals(found)}
    for row in result["rows"]:
        print(f"{row['name']:<36}{row['seconds']:>9.3f} s{row['tokens_per_s']:>10.1f} tokens/s")
    for goal in result["goals"]:
        print(f"{goal['name']}: {goal['value']} (goal {goal['goal']})")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    missed = [goal["name"] for goal in result["goals"] if not goal["ok"]]
    if options.check and missed:
        print(f"missed: {', '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Cost of teacher scores: the client's CPU, a real vLLM's CPU and bytes by route, eight servers kept busy.

One table, all figures from the same run on the same machine. ``--json FILE`` writes them, ``--check`` exits 1
when a goal is missed and says which in the last line. Without an installed vLLM (``make .venv-vllm``) its
rows and goals are left out, and the output says so.

A *candidate* is one logprob of one position: T tokens have (T - 1)(k + 1) of them. *Kept* ones are those of
the positions that are trained, here the second half of the sequence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import requests
from simulated_teachers import MODEL, completions_body, top_k

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.demo.assets import ensure_model
from atroposlib.demo.processes import free_ports
from atroposlib.demo.vllm_backend import VllmServer, find_vllm, server_command, server_variables, vllm_python
from atroposlib.errors import UsageError
from atroposlib.teacher import completions
from atroposlib.teacher.binary import SCORES_PATH, SCORES_TYPE, decode_answer, encode_answer, encode_request
from atroposlib.teacher.protocol import LogprobDtype, Question
from atroposlib.teacher.teacher import Teacher
from atroposlib.types import TeacherScores

TOP_KS = (8, 32, 128)
TOKENS = 256
SEED = 0
REPEATS = 15
VLLM_REQUESTS = 6
SERVERS = 8
SIMULATED_TOKENS = 1024
SIMULATED_K = 64
SIMULATED_REQUESTS = 200
SECONDS_PER_TOKEN = 1e-4
"""Time of a simulated engine for a token: a prefill of 10,000 tokens a second."""

SECONDS_PER_JSON_CANDIDATE = 18e-6
"""Time of a stock vLLM's API server for a candidate, measured on this project's machine."""

JSON_READ = "JSON, decoded and checked"

Row = dict[str, Any]
Goal = dict[str, Any]


def goal(name: str, value: float, limit: float, *, at_least: bool = False) -> Goal:
    """One goal of the issue and whether it is met."""
    met = value >= limit if at_least else value <= limit
    return {
        "name": name,
        "value": f"{value:.3g}",
        "goal": f"{'>=' if at_least else '<='} {limit:g}",
        "ok": met,
    }


def sequence(length: int) -> list[int]:
    """Random ids that a small vocabulary has too."""
    return np.random.default_rng(SEED).integers(100, 5000, length).tolist()


# The client's CPU.


def cpu_us(ways: dict[tuple[int, str], tuple[Callable[[], object], int]]) -> dict[tuple[int, str], float]:
    """Median CPU microseconds a candidate of each way to read a reply of so many candidates.

    The ways take turns, so that a machine whose speed changes is as slow for one as for the other.
    """
    times = {}
    for key, (way, _) in ways.items():
        way()
        started = time.process_time()
        way()
        times[key] = max(1, int(0.02 / max(time.process_time() - started, 1e-6)))
    samples: dict[tuple[int, str], list[float]] = {key: [] for key in ways}
    for _ in range(REPEATS):
        for key, (way, _) in ways.items():
            started = time.process_time()
            for _ in range(times[key]):
                way()
            samples[key].append((time.process_time() - started) / times[key])
    return {key: statistics.median(samples[key]) / ways[key][1] * 1e6 for key in ways}


def binary_body(question: Question) -> bytes:
    """The answer to ``question`` as bytes."""
    rows = len(question.ids) - question.start
    ids, logprobs = top_k(rows, question.k)
    ids[:, 0] = question.ids[question.start :]
    return encode_answer([TeacherScores(ids, logprobs, question.start, MODEL)], question.dtype)


def ways_to_read(k: int) -> dict[str, Callable[[], object]]:
    """Each way to read one reply for the top-k of T tokens, by name."""
    ids = np.array(sequence(TOKENS), np.int32)
    text = completions_body(ids.tolist(), k)
    whole = Question(ids, k)
    halves = Question(ids, k, dtype="float16")
    whole_body, halves_body = binary_body(whole), binary_body(halves)
    return {
        JSON_READ: lambda: completions.read(text, whole),
        "json.loads alone": lambda: json.loads(text),
        "orjson.loads alone": lambda: orjson.loads(text),
        "binary float32, decoded and checked": lambda: decode_answer(whole_body, [whole]),
        "binary float16, decoded and checked": lambda: decode_answer(halves_body, [halves]),
    }


def measure_client(results: list[Row], goals: list[Goal]) -> None:
    """Decoding and checking a reply, without HTTP; beside it what only parsing the JSON takes."""
    ways = {(k, name): (way, (TOKENS - 1) * (k + 1)) for k in TOP_KS for name, way in ways_to_read(k).items()}
    costs = cpu_us(ways)
    results += [
        {"what": f"client, k={k}: {name}", "CPU us a candidate": f"{cost:.3f}"}
        for (k, name), cost in costs.items()
    ]
    for k in TOP_KS:
        binary = max(cost for (at, name), cost in costs.items() if at == k and name.startswith("binary"))
        goals.append(goal(f"client CPU us a candidate, JSON, k={k}", costs[k, JSON_READ], 0.7))
        goals.append(goal(f"client CPU us a candidate, binary, k={k}", binary, 0.03))


# A real vLLM's CPU and bytes.


@dataclass
class Cost:
    """What one request costs.

    Attributes:
        cpu_ms: CPU of the API server's process alone, without the engine's.
        size: Bytes of the answer.
        seconds: Median time from request to answer.
    """

    cpu_ms: float
    size: int
    seconds: float


@contextmanager
def running_vllm(folder: Path) -> Iterator[tuple[str, int]]:
    """URL and process id of a vLLM's API server with all three routes."""
    vllm = find_vllm(vllm_python())
    server = VllmServer(
        ensure_model(), MODEL, free_ports(1)[0], TOKENS * 2, max(TOP_KS), dtype="float32", threads=1
    )
    variables = {**os.environ, **server_variables(vllm, server), "VLLM_PLUGINS": "atropos"}
    with (folder / "vllm.log").open("wb") as log:
        command = [*server_command(vllm, server), "--enable-scale-out"]
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 300
        while not answers(f"{server.url}/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "vllm.log").read_text(errors="replace")[-2000:])
            time.sleep(0.5)
        yield server.url, process.pid
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    """Whether a server answers 200."""
    try:
        return requests.get(url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def vllm_request(route: str, ids: Sequence[int], k: int) -> tuple[str, bytes, str]:
    """Path, body and media type of a scoring request over a route."""
    if route == "plugin float16":
        question = Question(np.array(ids, np.int32), k, start=len(ids) // 2, dtype="float16")
        return SCORES_PATH, encode_request([question], MODEL), SCORES_TYPE
    params = {"prompt_logprobs": k, "max_tokens": 1, "temperature": 0.0}
    if route == "completions":
        body = {"model": MODEL, "prompt": list(ids), **params}
        return "/v1/completions", orjson.dumps(body), "application/json"
    body = {"model": MODEL, "token_ids": list(ids), "sampling_params": {**params, "detokenize": False}}
    return "/inference/v1/generate", orjson.dumps(body), "application/json"


def vllm_cost(url: str, pid: int, route: str, k: int) -> Cost:
    """Mean cost of a few requests, after one that is not counted."""
    path, body, media = vllm_request(route, sequence(TOKENS), k)
    seconds = []
    with requests.Session() as session:
        for repetition in range(VLLM_REQUESTS + 1):
            if repetition == 1:
                before = cpu_seconds(pid)
            started = time.perf_counter()
            answer = session.post(url + path, data=body, headers={"Content-Type": media}, timeout=300)
            seconds.append(time.perf_counter() - started)
            answer.raise_for_status()
        cpu = cpu_seconds(pid) - before
    return Cost(cpu / VLLM_REQUESTS * 1e3, len(answer.content), statistics.median(seconds[1:]))


def measure_vllm(results: list[Row], goals: list[Goal]) -> None:
    """The three routes of one vLLM, SmolLM2-135M in float32 on CPU."""
    try:
        find_vllm(vllm_python())
    except UsageError as error:
        print(f"no rows of a real vLLM: {error.what}")
        return
    routes = ("completions", "generate", "plugin float16")
    kept = TOKENS - TOKENS // 2
    with tempfile.TemporaryDirectory() as folder, running_vllm(Path(folder)) as (url, pid):
        costs = {(route, k): vllm_cost(url, pid, route, k) for k in TOP_KS for route in routes}
    for (route, k), cost in costs.items():
        rows = kept if route.startswith("plugin") else TOKENS - 1
        results.append(
            {
                "what": f"vLLM 0.32, k={k}: {route}",
                "server API CPU ms a request": f"{cost.cpu_ms:.1f}",
                "bytes a kept candidate": f"{cost.size / (kept * (k + 1)):.2f}",
                "bytes a candidate sent": f"{cost.size / (rows * (k + 1)):.2f}",
                "seconds a request": f"{cost.seconds:.2f}",
            }
        )
    for k in TOP_KS:
        size = costs["plugin float16", k].size / (kept * (k + 1))
        goals.append(goal(f"plugin, bytes a kept candidate, k={k}", size, 6.5))
    share = costs["plugin float16", 128].cpu_ms / costs["completions", 128].cpu_ms
    goals.append(goal("plugin's API CPU / that of /v1/completions, k=128", share, 1 / 20))


# Eight simulated servers and one client process.


@contextmanager
def simulated_servers(json_only: bool) -> Iterator[list[str]]:
    """URLs of the servers, all in one process beside this one."""
    ports = free_ports(SERVERS)
    command = [sys.executable, str(Path(__file__).with_name("simulated_teachers.py")), *map(str, ports)]
    command += ["--seconds-per-token", str(SECONDS_PER_TOKEN)]
    command += ["--seconds-per-json-candidate", str(SECONDS_PER_JSON_CANDIDATE)]
    process = subprocess.Popen(command + (["--json-only"] if json_only else []))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        while not all(map(answers, (f"{url}/health" for url in urls))):
            time.sleep(0.1)
        yield urls
    finally:
        process.terminate()
        process.wait(30)


def busy_seconds(urls: list[str]) -> float:
    """Seconds that the engines of all servers have worked."""
    return sum(requests.get(f"{url}/busy", timeout=5).json()["busy_s"] for url in urls)


async def loop_delays(stop: asyncio.Event) -> list[float]:
    """By how many seconds each of a series of one-millisecond timers was late."""
    delays = []
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        due = loop.time() + 1e-3
        await asyncio.sleep(1e-3)
        delays.append(loop.time() - due)
    return delays


async def score_all(teacher: Teacher, waiting: deque[list[int]]) -> None:
    """Score one sequence after the other until none is left."""
    while waiting:
        await teacher.score(waiting.popleft(), SIMULATED_K)


async def keep_busy(urls: list[str], dtype: LogprobDtype, requests_made: int) -> dict[str, float]:
    """Score sequences over all servers at once; how busy they were, and what it cost this process."""
    configs = [APIServerConfig(base_url=url, model_name=MODEL, timeout=120) for url in urls]
    # Two sequences a server: one in its engine, one on its way.
    limits = TeacherLimits(tokens_in_flight=2 * SIMULATED_TOKENS)
    teacher = Teacher("simulated", configs, limits, dtype=dtype)
    ids = sequence(SIMULATED_TOKENS)
    try:
        await asyncio.gather(*(teacher.score([*ids[:-1], n], SIMULATED_K) for n in range(2 * SERVERS)))
        before = await asyncio.to_thread(busy_seconds, urls)
        stop = asyncio.Event()
        ticker = asyncio.create_task(loop_delays(stop))
        started, cpu = time.perf_counter(), time.process_time()
        # Every sequence is another one, so that none is joined.
        waiting = deque([*ids[:-1], 6000 + n] for n in range(requests_made))
        await asyncio.gather(*(score_all(teacher, waiting) for _ in range(3 * SERVERS)))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        stop.set()
        delays = await ticker
        after = await asyncio.to_thread(busy_seconds, urls)
    finally:
        await teacher.close()
    candidates = requests_made * (SIMULATED_TOKENS - 1) * (SIMULATED_K + 1)
    return {
        "busy": (after - before) / (SERVERS * seconds),
        "p99_ms": float(np.percentile(delays, 99)) * 1e3,
        "cpu_us": cpu / candidates * 1e6,
        "candidates_per_s": candidates / seconds,
    }


def measure_busy(results: list[Row], goals: list[Goal]) -> None:
    """One process and eight servers, over the binary route and over JSON replies of 4 MB."""
    for name, json_only, made in (("binary float16", False, SIMULATED_REQUESTS), ("JSON", True, 3 * SERVERS)):
        with simulated_servers(json_only) as urls:
            told = asyncio.run(keep_busy(urls, "float16", made))
        results.append(
            {
                "what": f"{SERVERS} simulated servers, k={SIMULATED_K}, {SIMULATED_TOKENS} tokens: {name}",
                "servers busy": f"{told['busy']:.2f}",
                "loop late, p99 ms": f"{told['p99_ms']:.1f}",
                "CPU us a candidate": f"{told['cpu_us']:.3f}",
                "candidates a second": f"{told['candidates_per_s']:,.0f}",
            }
        )
        goals.append(goal(f"{SERVERS} servers busy, {name}", told["busy"], 0.9, at_least=True))
        if not json_only:
            goals.append(goal(f"event loop late, p99 ms, {name}", told["p99_ms"], 5.0))


def table(rows: list[Row]) -> list[Row]:
    """The rows with the same columns, in order of first appearance."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return [{column: row.get(column, "") for column in columns} for row in rows]


def main() -> int:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument("--only", choices=["client", "vllm", "busy"], help="measure one part")
    options = parser.parse_args()
    results: list[Row] = []
    goals: list[Goal] = []
    parts = {"client": measure_client, "busy": measure_busy, "vllm": measure_vllm}
    for name, measure in parts.items():
        if options.only in (None, name):
            measure(results, goals)
    rows = table(results)
    for row in rows:
        print("  ".join(f"{column}: {value}" for column, value in row.items() if value))
    for one in goals:
        print(f"{'ok  ' if one['ok'] else 'MISS'} {one['name']}: {one['value']} ({one['goal']})")
    if options.json:
        options.json.write_text(
            json.dumps({"title": "Teacher scores", "rows": rows, "goals": goals}), encoding="utf-8"
        )
    missed = [one["name"] for one in goals if not one["ok"]]
    print(f"missed: {', '.join(missed)}" if missed else "all goals met")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

"""The trajectory API beside the real Atropos 0.4.0: posting groups, fetching a batch, who waits meanwhile.

A group is 8 sequences of 1,024 tokens with dense top-K arrays; a batch is 64 sequences. Each server is a
process of its own, and all rows come from one run. ``--json FILE`` writes them, ``--check`` exits 1 when a
goal is missed. 0.4.0 runs in the environment that ``make bench`` makes (``.venv-peer``); ATROPOS_PEER_PYTHON
names another.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import requests

from atroposlib.demo.processes import free_ports
from atroposlib.types import ScoredDataGroup
from atroposlib.wire.batch import decode_batch
from atroposlib.wire.container import Codec
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import FRAME_TYPE

SEQUENCES, LENGTH, PROMPT, BATCH = 8, 1024, 256, 64
VOCABULARY = 151_936
GROUPS = BATCH // SEQUENCES
COLUMNS = (0, 1, 16, 64)
JSON_POSTS = 8
FRAME_POSTS = 40
MEBIBYTE = 1 << 20
PEER = Path(
    os.environ.get("ATROPOS_PEER_PYTHON", Path(__file__).parents[1] / ".venv-peer" / "bin" / "python")
)


RUN = {
    "wandb_group": "b",
    "wandb_project": "b",
    "batch_size": BATCH,
    "max_token_len": 4096,
    "checkpoint_dir": "x",
    "save_checkpoint_interval": -1,
    "starting_step": 0,
    "num_steps": 10,
}


def make_group(rng: np.random.Generator, columns: int) -> ScoredDataGroup:
    """A group of Zipf-distributed ids and falling logprobs; the probabilities of a row sum below 1."""
    shape = (SEQUENCES, LENGTH)
    tokens = np.minimum(rng.zipf(1.3, shape) * 7 % VOCABULARY, VOCABULARY - 1).astype(np.int32)
    tokens[:, :PROMPT] = tokens[0, :PROMPT]
    masks = tokens.copy()
    masks[:, :PROMPT] = -100
    sampled = -rng.exponential(0.4, shape).astype(np.float32)
    sampled[:, :PROMPT] = 1.0
    group: dict[str, Any] = {
        "tokens": tokens.tolist(),
        "masks": masks.tolist(),
        "scores": [float(index % 2) for index in range(SEQUENCES)],
        "inference_logprobs": sampled.tolist(),
        "env_id": 0,
    }
    if columns:
        ids, logprobs = make_targets(rng, tokens, columns)
        group |= {"distill_token_ids": ids.tolist(), "distill_logprobs": logprobs.tolist()}
    return ScoredDataGroup(**group)


def make_targets(
    rng: np.random.Generator, tokens: np.ndarray[Any, Any], columns: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids and logprobs [G, T, K]; column 0 is the sequence's own token, no id twice in a row."""
    steps = rng.integers(1, 97, (*tokens.shape, columns))
    steps[..., 0] = 0
    ids = ((tokens[..., None] + steps.cumsum(axis=-1)) % VOCABULARY).astype(np.int32)
    logprobs = -0.7 - rng.exponential(0.6, (*tokens.shape, columns)).astype(np.float32).cumsum(axis=-1)
    norm = np.log(np.maximum(1.0, np.exp(logprobs, dtype=np.float64).sum(axis=-1, keepdims=True)))
    return ids, (logprobs - norm).astype(np.float32)


@dataclass
class Server:
    """A running API."""

    url: str
    pid: int

    def rss(self) -> float:
        """Resident MiB of the process and its children."""
        pids = [self.pid, *map(int, _read(f"/proc/{self.pid}/task/{self.pid}/children").split())]
        lines = (line for pid in pids for line in _read(f"/proc/{pid}/status").splitlines())
        return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


@contextmanager
def server(command: list[str], folder: Path) -> Iterator[Server]:
    """An API on a free port, answering."""
    port = free_ports(1)[0]
    process = subprocess.Popen(
        [*command, "--port", str(port)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    running = Server(f"http://127.0.0.1:{port}", process.pid)
    try:
        wait_until_it_answers(running.url, process)
        yield running
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_until_it_answers(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when GET /info is answered."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            requests.get(f"{url}/info", timeout=2)
        except requests.ConnectionError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"no API at {url}")


class StatusProber(threading.Thread):
    """Asks GET /status every 20 ms; ``worst`` is the longest answer in seconds."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._ended, self.worst = f"{url}/status", threading.Event(), 0.0

    def run(self) -> None:
        """Until it is stopped."""
        with requests.Session() as session:
            while not self._ended.wait(0.02):
                start = time.perf_counter()
                session.get(self._url, timeout=120)
                self.worst = max(self.worst, time.perf_counter() - start)

    def __enter__(self) -> StatusProber:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self.join()


def start_run(url: str) -> None:
    """An empty server with a registered trainer and an environment."""
    requests.get(f"{url}/reset_data", timeout=60)
    requests.post(f"{url}/register", json=RUN, timeout=60).raise_for_status()
    requests.get(f"{url}/batch", timeout=60)
    env = {"max_token_length": 4096, "desired_name": "b", "weight": 1.0, "group_size": SEQUENCES}
    requests.post(f"{url}/register-env", json=env, timeout=60).raise_for_status()


def post_all(session: requests.Session, url: str, bodies: list[bytes], headers: dict[str, str]) -> float:
    """Median seconds of a post."""
    seconds = []
    for body in bodies:
        start = time.perf_counter()
        session.post(url, data=body, headers=headers, timeout=300).raise_for_status()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def read_streamed(answer: requests.Response, start: float) -> tuple[bytes, float, float]:
    """Body, seconds to the first byte, longest pause between two reads in seconds."""
    pieces, first, last, pause = [], 0.0, start, 0.0
    for piece in answer.raw.stream(1 << 16, decode_content=False):
        now = time.perf_counter()
        first = first or now - start
        pause = max(pause, now - last)
        last = now
        pieces.append(piece)
    return b"".join(pieces), first, pause


def measure_json(running: Server, groups: list[ScoredDataGroup]) -> dict[str, Any]:
    """POST /scored_data with gzip and GET /batch with gzip, as Atropos's clients do."""
    start_run(running.url)
    bodies = [gzip.compress(orjson.dumps(group), compresslevel=9) for group in groups]
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    rss = running.rss()
    with requests.Session() as session, StatusProber(running.url) as prober:
        post = post_all(session, f"{running.url}/scored_data", bodies, headers)
        grown = running.rss() - rss
        start = time.perf_counter()
        answer = session.get(f"{running.url}/batch", stream=True, timeout=300)
        body, first, pause = read_streamed(answer, start)
        total = time.perf_counter() - start
    start = time.perf_counter()
    batch = orjson.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)["batch"]
    assert sum(len(group["tokens"]) for group in batch) == BATCH
    return {
        "bytes": len(bodies[0]),
        "post": post,
        "first": first,
        "pause": pause,
        "batch": total,
        "decode": time.perf_counter() - start,
        "status": prober.worst,
        "rss": grown / len(bodies),
    }


def measure_frames(running: Server, groups: list[ScoredDataGroup]) -> dict[str, Any]:
    """POST /v1/groups of encoded frames, and lease, read and decode of a batch."""
    start_run(running.url)
    many = [named_frame(groups, index, "zstd") for index in range(FRAME_POSTS)]
    plain = [named_frame(groups, FRAME_POSTS + index, "none") for index in range(GROUPS)]
    register_trainer(running.url)
    # The first posts make the server's threads and buffers, which are no cost of a group.
    warm, alone, probed = many[:GROUPS], many[GROUPS : 3 * GROUPS], many[3 * GROUPS :]
    with requests.Session() as session:
        post_frames(session, running.url, warm)
        rss = running.rss()
        # The prober's thread holds this process up, so posts are timed without it, then repeated beside it.
        post = post_frames(session, running.url, alone)
        with StatusProber(running.url) as prober:
            post_frames(session, running.url, probed)
            grown = running.rss() - rss
            fetched = [fetch_frames(session, running.url) for _ in range(FRAME_POSTS // GROUPS)]
        post_plain = post_frames(session, running.url, plain)
    middle = sorted(fetched, key=lambda times: times["batch"] + times["decode"])[len(fetched) // 2]
    stored = sum(map(len, alone + probed))
    return {
        "bytes": len(many[0]),
        "post": post,
        "post_plain": post_plain,
        **middle,
        "status": prober.worst,
        "rss": grown / len(alone + probed),
        "rss_over_stored": grown * MEBIBYTE / stored,
    }


def named_frame(groups: list[ScoredDataGroup], index: int, codec: Codec) -> bytes:
    """One of the groups under a name of its own, with float16 logprobs."""
    return encode_group(ScoredDataGroup(**groups[index % len(groups)], group_id=f"g{index}"), codec=codec)


def post_frames(session: requests.Session, url: str, frames: list[bytes]) -> float:
    """Median seconds of POST /v1/groups."""
    return post_all(session, f"{url}/v1/groups", frames, {"Content-Type": FRAME_TYPE})


def register_trainer(url: str) -> None:
    """POST /v1/trainers."""
    requests.post(f"{url}/v1/trainers", json={"trainer_id": "b", "run": RUN}, timeout=60).raise_for_status()


def fetch_frames(session: requests.Session, url: str) -> dict[str, float]:
    """One batch: lease and read, decode to numpy; acked afterwards."""
    start = time.perf_counter()
    answer = session.post(f"{url}/v1/batches/lease", json={"trainer_id": "b"}, stream=True, timeout=300)
    answer.raise_for_status()
    body, first, pause = read_streamed(answer, start)
    total = time.perf_counter() - start
    start = time.perf_counter()
    batch = decode_batch(body)
    decode = time.perf_counter() - start
    assert sum(len(group.tokens) for group in batch) == BATCH
    session.post(
        f"{url}/v1/batches/{answer.headers['Atropos-Batch-Id']}/ack", json={"attempt": 1}, timeout=60
    )
    return {"first": first, "pause": pause, "batch": total, "decode": decode}


def row(columns: int, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """A line of the table."""
    return {
        "K": columns,
        "server, wire": name,
        "MB a group": f"{result['bytes'] / 1e6:.3f}",
        "post (ms)": f"{result['post'] * 1e3:.1f}",
        "batch, read (ms)": f"{result['batch'] * 1e3:.0f}",
        "first byte (ms)": f"{result['first'] * 1e3:.0f}",
        "decode (ms)": f"{result['decode'] * 1e3:.0f}",
        "longest /status (ms)": f"{result['status'] * 1e3:.0f}",
        "RSS a group (MiB)": f"{result['rss']:.2f}",
    }


def goal(name: str, value: float, limit: float, unit: str = "") -> dict[str, Any]:
    """A figure that must not exceed its limit."""
    return {"name": name, "value": f"{value:.3g}{unit}", "goal": f"<= {limit:g}{unit}", "ok": value <= limit}


def goals(results: dict[tuple[int, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of the design."""
    memory, sqlite, ours = results[64, "frames"], results[64, "sqlite"], "json"
    found = [
        goal("JSON batch at K=16, read", results[16, ours]["batch"], 2.0, " s"),
        goal("JSON batch at K=16, first byte", results[16, ours]["first"], 0.2, " s"),
        goal("JSON batch at K=64, longest pause", results[64, ours]["pause"], 10.0, " s"),
        goal("frame post at K=64 into memory", memory["post"] * 1e3, 15, " ms"),
        goal("frame post at K=64 into memory, not compressed", memory["post_plain"] * 1e3, 15, " ms"),
        goal("frame post at K=64 into SQLite", sqlite["post"] * 1e3, 25, " ms"),
        goal("frame batch at K=64, memory", (memory["batch"] + memory["decode"]) * 1e3, 150, " ms"),
        goal("frame batch at K=64, SQLite", (sqlite["batch"] + sqlite["decode"]) * 1e3, 150, " ms"),
        goal("RSS growth over bytes stored, memory", memory["rss_over_stored"], 1.2),
        goal("RSS growth over bytes stored, SQLite", sqlite["rss_over_stored"], 0.1),
    ]
    for columns in COLUMNS:
        worst = max(results[columns, name]["status"] for name in (ours, "frames", "sqlite"))
        found.append(goal(f"longest /status at K={columns}", worst * 1e3, 50, " ms"))
        if columns:
            ratio = results[columns, "frames"]["bytes"] / results[columns, ours]["bytes"]
            found.append(goal(f"frame over gzip JSON at K={columns}", ratio, 0.4))
    return found


NAMES = {
    "peer": "0.4.0, JSON",
    "json": "ours, JSON",
    "frames": "ours, frames, memory",
    "sqlite": "ours, frames, SQLite",
}


def measure(folder: Path, with_peer: bool) -> dict[tuple[int, str], dict[str, Any]]:
    """All results by (K, name)."""
    rng = np.random.default_rng(0)
    ours = [sys.executable, "-m", "atroposlib.cli.main", "api", "--store"]
    commands = {
        "json": [*ours, "memory"],
        "frames": [*ours, "memory"],
        "sqlite": [*ours, "sqlite:///q.sqlite3"],
    }
    if with_peer:
        commands = {"peer": [str(PEER), "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1"], **commands}
    results = {}
    for columns in COLUMNS:
        groups = [make_group(rng, columns) for _ in range(JSON_POSTS)]
        for name, command in commands.items():
            place = folder / f"{name}-{columns}"
            place.mkdir()
            with server(command, place) as running:
                measured = measure_json if name in ("peer", "json") else measure_frames
                results[columns, name] = measured(running, groups)
            print(row(columns, NAMES[name], results[columns, name]), flush=True)
    return results


def main() -> int:
    """Measure, print, write; exit 1 with ``--check`` when a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is missed")
    parser.add_argument(
        "--no-peer", action="store_true", help="leave 0.4.0 out, which takes most of the time"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), not options.no_peer)
    found = goals(results)
    rows = [row(columns, NAMES[name], result) for (columns, name), result in results.items()]
    for reached in found:
        print(reached)
    if options.json:
        title = "Trajectory API: a group of 8 x 1,024 tokens, a batch of 64 sequences"
        options.json.write_text(json.dumps({"title": title, "rows": rows, "goals": found}), encoding="utf-8")
    missed = [reached["name"] for reached in found if not reached["ok"]]
    print("missed: " + "; ".join(missed) if missed else "all goals met")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

"""Small bodies that inflate to huge ones: refused early, without memory, while others are served."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
import zstandard

from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import FRAME_TYPE
from tests.api.support import group, run_api

MEBIBYTE = 1 << 20
INFLATED = 300 * MEBIBYTE
ALLOWED_GROWTH = 32 * MEBIBYTE


def honest() -> bytes:
    return gzip.compress(b'{"tokens": [[' + b" " * INFLATED)


def with_a_lying_trailer() -> bytes:
    return honest()[:-4] + (1000).to_bytes(4, "little")


def behind_a_small_member() -> bytes:
    return gzip.compress(b" ") + honest() + gzip.compress(b" ")


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    return [pid, *(descendant for child in children for descendant in tree(int(child)))]


def memory(pids: list[int], kind: str) -> int:
    """Bytes of the processes: VmRSS now, VmHWM at most since it was last forgotten."""
    total = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        found = re.search(rf"{kind}:\s+(\d+) kB", text)
        assert found is not None
        total += int(found[1]) * 1024
    return total


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """Process id and URL of an API whose workers run."""
    cwd = tmp_path_factory.mktemp("api")
    with run_api("--store", "memory", cwd=cwd) as (process, url, _):
        large = json.dumps(group(messages=[[{"role": "user", "content": "x" * (2 << 20)}]])).encode()
        headers = {"Content-Type": "application/json"}
        # Two at once, so that both workers have started.
        posts = [
            threading.Thread(
                target=requests.post, args=(f"{url}/scored_data",), kwargs={"data": large, "headers": headers}
            )
            for _ in range(4)
        ]
        for post in posts:
            post.start()
        for post in posts:
            post.join(timeout=60)
        yield process.pid, url


@pytest.mark.parametrize("bomb", [honest, with_a_lying_trailer, behind_a_small_member])
def test_a_gzip_bomb_takes_no_memory_and_stalls_nobody(
    server: tuple[int, str], bomb: Callable[[], bytes]
) -> None:
    """Defect 13: 292 kB took 860 MiB and blocked the loop for 8 s."""
    pid, url = server
    body, done, answered = bomb(), threading.Event(), []

    def probe() -> None:
        with requests.Session() as session:
            while not done.is_set():
                answered.append(session.get(f"{url}/status", timeout=5).status_code)

    before = memory(processes := tree(pid), "VmRSS")
    for process in processes:
        # Forgets the peak.
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")
    prober = threading.Thread(target=probe)
    prober.start()
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    refused = requests.post(f"{url}/scored_data", data=body, headers=headers, timeout=60)
    done.set()
    prober.join(timeout=20)
    assert (refused.status_code, refused.json()["code"]) == (413, "wire.too_large")
    assert memory(processes, "VmHWM") - before <= ALLOWED_GROWTH
    assert set(answered) == {200}


def test_a_frame_that_inflates_to_more_than_it_says_is_refused(server: tuple[int, str]) -> None:
    pid, url = server
    frame = encode_group(group(), codec="zstd")
    length = int.from_bytes(frame[:8], "little")
    header = frame[: 8 + length]
    bomb = header + zstandard.ZstdCompressor().compress(b"\0" * INFLATED)
    before = memory(processes := tree(pid), "VmRSS")
    answer = requests.post(f"{url}/v1/groups", data=bomb, headers={"Content-Type": FRAME_TYPE}, timeout=60)
    assert answer.status_code in (400, 413, 422)
    assert memory(processes, "VmRSS") - before <= ALLOWED_GROWTH


def test_deep_nesting_is_refused(server: tuple[int, str]) -> None:
    _, url = server
    deep = b'{"tokens": ' + b"[" * 500_000
    for path in ("/scored_data", "/scored_data_list", "/v1/groups", "/register"):
        headers = {"Content-Type": "application/json"}
        answer = requests.post(url + path, data=deep, headers=headers, timeout=60)
        assert answer.status_code in (400, 422)
    assert requests.get(f"{url}/status", timeout=20).status_code == 200

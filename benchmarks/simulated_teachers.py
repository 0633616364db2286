"""Simulated teacher servers for the teacher benchmark: right answers, made up once, after a set time.

Each has an engine that works on one request at a time, as long as its tokens take, without using a CPU. What
they answer passes every check of the client. ``GET /busy`` tells the seconds that the engine has worked.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from aiohttp import web
from numpy.typing import NDArray

from atroposlib.teacher.binary import (
    CAPABILITIES_PATH,
    PROTOCOL,
    SCORES_PATH,
    SCORES_TYPE,
    decode_request,
    encode_answer,
)
from atroposlib.types import TeacherScores

MODEL = "simulated"
FIRST_TOP_ID = 10_000
"""Ids of the top-k start here and ids of the sequences end below, so that no id stands in a row twice."""

PLACEHOLDER = FIRST_TOP_ID - 1
"""Stands for the last token of a sequence in a written answer."""

MAX_MODEL_LEN = 1 << 20
MAX_K = 128


def top_k(rows: int, k: int, seed: int = 0) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids int32 [R, K] and logprobs float32 [R, K] of falling probabilities; column 0 is yours to fill."""
    generator = np.random.default_rng(seed)
    logits = np.sort(generator.normal(scale=3.0, size=(rows, k + 1)).astype(np.float32), axis=1)[:, ::-1]
    # Half of the probability lies outside, and the standing token is the least likely of those told.
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)) - np.log(2.0)
    ids = FIRST_TOP_ID + np.tile(np.arange(k + 1, dtype=np.int32), (rows, 1))
    return ids, np.roll(logprobs, 1, axis=1).astype(np.float32)


def completions_body(ids: list[int], k: int) -> bytes:
    """The answer of ``/v1/completions`` of a stock vLLM for a scoring request."""
    tops, logprobs = top_k(len(ids) - 1, k)
    rows: list[Any] = [None]
    for token, top, values in zip(ids[1:], tops.tolist(), logprobs.tolist(), strict=True):
        row = {str(token): {"logprob": values[0], "rank": k + 1, "decoded_token": " token"}}
        for rank in range(1, k + 1):
            row[str(top[rank])] = {"logprob": values[rank], "rank": rank, "decoded_token": " token"}
        rows.append(row)
    choice = {"index": 0, "text": " x", "finish_reason": "length", "prompt_logprobs": rows}
    return orjson.dumps({"id": "cmpl-0", "object": "text_completion", "model": MODEL, "choices": [choice]})


@dataclass
class Simulated:
    """One server.

    Attributes:
        seconds_per_token: Time of the engine for a token, and for a candidate of a JSON answer.
        busy_s: Seconds that the engine has worked.
    """

    seconds_per_token: float
    seconds_per_json_candidate: float
    busy_s: float = 0.0
    engine: asyncio.Lock = field(default_factory=asyncio.Lock)
    bodies: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    tops: dict[tuple[int, int], tuple[NDArray[np.int32], NDArray[np.float32]]] = field(default_factory=dict)

    async def work(self, seconds: float) -> None:
        """Hold the engine for some time; a late timer is made up for by the next request's."""
        async with self.engine:
            start = time.perf_counter()
            await asyncio.sleep(seconds)
            self.busy_s += time.perf_counter() - start

    async def scores(self, request: web.Request) -> web.Response:
        """``POST /v1/atropos/scores``."""
        questions, _ = decode_request(await request.read())
        await self.work(self.seconds_per_token * sum(len(question.ids) for question in questions))
        answers = []
        for question in questions:
            rows = len(question.ids) - question.start
            shape = (rows, question.k)
            if shape not in self.tops:
                self.tops[shape] = top_k(rows, question.k)
            ids, logprobs = self.tops[shape]
            ids[:, 0] = question.ids[question.start :]
            answers.append(TeacherScores(ids, logprobs, question.start, MODEL, server="simulated 1"))
        body = encode_answer(answers, questions[0].dtype)
        return web.Response(body=body, content_type=SCORES_TYPE)

    async def completions(self, request: web.Request) -> web.Response:
        """``POST /v1/completions``; sequences that differ in their last token alone share what is written."""
        asked = orjson.loads(await request.read())
        ids, k = asked["prompt"], asked["prompt_logprobs"]
        key = (np.array(ids[:-1], np.int32).tobytes(), k)
        if key not in self.bodies:
            self.bodies[key] = completions_body([*ids[:-1], PLACEHOLDER], k)
        seconds = self.seconds_per_token + self.seconds_per_json_candidate * (k + 1)
        await self.work(seconds * len(ids))
        body = self.bodies[key].replace(b'"%d"' % PLACEHOLDER, b'"%d"' % ids[-1])
        return web.Response(body=body, content_type="application/json")


async def serve(ports: list[int], server: dict[str, float], binary: bool) -> None:
    """Serve until the process is ended."""
    for port in ports:
        simulated = Simulated(**server)
        app = web.Application(client_max_size=1 << 28)
        facts = {
            "protocol": PROTOCOL,
            "server": "simulated 1",
            "model": MODEL,
            "max_model_len": MAX_MODEL_LEN,
            "max_k": MAX_K,
            "vocab_size": 1 << 20,
            "extra_ids": False,
        }
        if binary:
            app.router.add_post(SCORES_PATH, simulated.scores)
            app.router.add_get(CAPABILITIES_PATH, _json(lambda facts=facts: facts))
        app.router.add_post("/v1/completions", simulated.completions)
        app.router.add_get("/health", _json(dict))
        app.router.add_get("/version", _json(lambda: {"version": "0.32.0"}))
        card = {"id": MODEL, "max_model_len": MAX_MODEL_LEN}
        app.router.add_get("/v1/models", _json(lambda card=card: {"data": [card]}))
        app.router.add_get("/busy", _json(lambda simulated=simulated: {"busy_s": simulated.busy_s}))
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def _json(make: Any) -> Any:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(make()), content_type="application/json")

    return answer


def main() -> None:
    """Serve on the given ports."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--seconds-per-token", type=float, default=0.0)
    parser.add_argument("--seconds-per-json-candidate", type=float, default=0.0)
    parser.add_argument("--json-only", action="store_true")
    options = parser.parse_args()
    times = {
        "seconds_per_token": options.seconds_per_token,
        "seconds_per_json_candidate": options.seconds_per_json_candidate,
    }
    asyncio.run(serve(options.ports, times, not options.json_only))


if __name__ == "__main__":
    main()

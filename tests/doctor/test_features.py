"""Speculative decoding and LoRA, by what a server says of itself."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from atroposlib.doctor.features import LORA, SPECULATIVE, check_features
from tests.doctor.subjects import subject
from tests.support.recorded import recorded_body
from tests.support.scripted_server import Reply, ScriptedServer

# As vLLM 0.32 names them, with a value or with the heading alone.
PLAIN = '# HELP vllm:num_requests_running Requests.\nvllm:num_requests_running{engine="0"} 0.0\n'
DRAFTS = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="t"} 0.0\n'
ADAPTERS = "# HELP vllm:lora_requests_info Running stats on lora requests.\n"
ADAPTER = {"id": "tuned", "object": "model", "parent": "smollm2", "root": "/adapters/tuned"}


async def found(server: ScriptedServer, session: aiohttp.ClientSession) -> dict[str, str]:
    checks = await check_features(subject(server.url, session))
    return {check.name: check.status for check in checks}


@pytest.mark.parametrize(
    ("metrics", "speculative", "lora"),
    [
        (PLAIN, "ok", "ok"),
        (PLAIN + DRAFTS, "warn", "ok"),
        (PLAIN + ADAPTERS, "ok", "warn"),
        ("python_info 1.0\n", "skip", "skip"),
        ("other:vllm:spec_decode 1.0\n", "skip", "skip"),
    ],
)
async def test_metrics_tell_what_is_on(
    server: ScriptedServer, session: aiohttp.ClientSession, metrics: str, speculative: str, lora: str
) -> None:
    server.then("/metrics", Reply(metrics.encode()))
    server.then("/v1/models", Reply(recorded_body("info", "models")))
    assert await found(server, session) == {SPECULATIVE: speculative, LORA: lora}


@pytest.mark.parametrize(
    ("settings", "speculative", "lora"),
    [
        ({"speculative_config": None, "lora_config": None}, "ok", "ok"),
        ({"speculative_config": {"method": "mtp"}, "lora_config": None}, "warn", "ok"),
        ({"speculative_config": None, "lora_config": {"max_loras": 1}}, "ok", "warn"),
        ({}, "skip", "skip"),
        ("model='t', speculative_config=None", "skip", "skip"),
    ],
)
async def test_dev_mode_tells_where_metrics_do_not(
    server: ScriptedServer, session: aiohttp.ClientSession, settings: Any, speculative: str, lora: str
) -> None:
    server.then("/server_info", Reply({"vllm_config": settings}))
    assert await found(server, session) == {SPECULATIVE: speculative, LORA: lora}


async def test_a_listed_adapter_is_lora_whatever_else_is_said(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    cards = recorded_body("info", "models")
    server.then("/v1/models", Reply({**cards, "data": [*cards["data"], ADAPTER]}))
    checks = await check_features(subject(server.url, session))
    lora = next(check for check in checks if check.name == LORA)
    assert lora.status == "warn"
    assert "tuned" in lora.detail


async def test_a_server_that_says_nothing_is_not_accused(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    assert await found(server, session) == {SPECULATIVE: "skip", LORA: "skip"}

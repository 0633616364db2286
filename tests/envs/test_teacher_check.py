"""The quick check at the start of a run, on a real model server and on servers that are away or wrong."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs import teacher_check
from atroposlib.envs.teacher_check import check_servers
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import ConfigError, TeacherError, TeacherUnreachable
from tests.support.fake_vllm import vllm_answer
from tests.support.running_model_server import running_model_server
from tests.support.scripted_server import Reply, Request, ScriptedServer, scripted_server

AWAY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def served(tiny_model_dir: Path) -> Iterator[str]:
    """URL of a real model server."""
    with running_model_server(tiny_model_dir, served_model_name="tiny", max_logprobs=10) as url:
        yield url


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A scripted server that tokenizes by bytes, as the tiny tokenizer does."""
    async with scripted_server() as running:
        running.answer = vllm_answer
        yield running


@pytest.fixture
def tokenizer(tiny_model_dir: Path) -> Any:
    """The student's tokenizer."""
    return read_tokenizer(str(tiny_model_dir))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_check, "PATIENCE_SECONDS", 0.0)


def at(*urls: str, **settings: Any) -> list[APIServerConfig]:
    return [APIServerConfig(base_url=url, **settings) for url in urls]


async def test_a_right_server_passes(served: str, tokenizer: Any) -> None:
    await check_servers("math", at(served, model_name="tiny"), tokenizer, 10)


async def test_too_large_a_top_k_is_refused_with_the_flag_to_change(served: str, tokenizer: Any) -> None:
    with pytest.raises(TeacherError, match="--max-logprobs 11"):
        await check_servers("math", at(served), tokenizer, 11)


async def test_another_model_than_named_is_refused(served: str, tokenizer: Any) -> None:
    with pytest.raises(TeacherError, match="tiny"):
        await check_servers("math", at(served, model_name="large"), tokenizer, 1)


async def test_another_tokenizer_than_the_students_is_refused(server: ScriptedServer, tokenizer: Any) -> None:
    def shifted(request: Request) -> Reply:
        if request.path == "/tokenize":
            return Reply({"tokens": [byte + 1 for byte in request.body["prompt"].encode()]})
        return vllm_answer(request)

    server.answer = shifted
    with pytest.raises(ConfigError, match="teacher math: http"):
        await check_servers("math", at(server.url), tokenizer, 1)


async def test_no_server_at_all_is_unreachable(tokenizer: Any) -> None:
    with pytest.raises(TeacherUnreachable):
        await check_servers("math", at(AWAY, AWAY), tokenizer, 1)


async def test_a_run_begins_without_one_of_its_servers(
    server: ScriptedServer, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=teacher_check.__name__):
        await check_servers("math", at(AWAY, server.url), tokenizer, 1)
    assert "teacher math begins without one of its servers" in caplog.text


async def test_a_wrong_server_is_told_even_beside_one_that_is_away(
    server: ScriptedServer, tokenizer: Any
) -> None:
    server.answer = lambda _: Reply({"error": "Unauthorized"}, 401)
    with pytest.raises(TeacherError, match="api_key"):
        await check_servers("math", at(AWAY, server.url), tokenizer, 1)

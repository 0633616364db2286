"""The tokenizer that a server hands out: what is told, what is kept, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import TeacherError
from atroposlib.teacher import tokenizer_files
from atroposlib.teacher.tokenizer_files import TokenizerFiles, fetch_files, keep, read_files
from atroposlib.teacher.transport import TEACHER, open_session, peer_of
from tests.support.scripted_server import Reply, ScriptedServer, scripted_server
from tests.support.tiny import write_tokenizer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as running:
        yield running


async def fetched(server: ScriptedServer, reply: Reply) -> TokenizerFiles | None:
    server.then("/v1/atropos/tokenizer", reply)
    async with open_session() as session:
        return await fetch_files(session, peer_of(APIServerConfig(base_url=server.url), TEACHER))


def test_files_of_a_directory_are_its_texts(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    files = read_files(str(tmp_path))
    assert files is not None
    assert files.tokenizer == (tmp_path / "tokenizer.json").read_text("utf-8")
    assert files.config == (tmp_path / "tokenizer_config.json").read_text("utf-8")
    assert files.chat_template is None
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    files = read_files(str(tmp_path))
    assert files is not None
    assert files.chat_template == "{{ messages }}"


def test_directory_without_a_fast_tokenizer_has_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"pieces")
    assert read_files(str(tmp_path)) is None
    assert read_files(str(tmp_path / "nowhere" / "at" / "all")) is None


async def test_files_come_as_they_were_sent(server: ScriptedServer) -> None:
    sent = {"tokenizer": "{}", "config": None, "chat_template": "{{ x }}", "later": 1}
    assert await fetched(server, Reply(sent)) == TokenizerFiles(tokenizer="{}", chat_template="{{ x }}")


@pytest.mark.parametrize("status", [403, 404, 405, 501])
async def test_server_without_the_route_hands_out_none(server: ScriptedServer, status: int) -> None:
    assert await fetched(server, Reply({"detail": "Not Found"}, status)) is None


@pytest.mark.parametrize("reply", [Reply({"tokenizer": 1}), Reply([]), Reply(b"no JSON"), Reply({})])
async def test_answer_that_is_no_tokenizer_is_a_bad_reply(server: ScriptedServer, reply: Reply) -> None:
    with pytest.raises(TeacherError) as caught:
        await fetched(server, reply)
    assert caught.value.code == "teacher.bad_reply"


async def test_wrong_key_is_refused(server: ScriptedServer) -> None:
    with pytest.raises(TeacherError, match="api_key"):
        await fetched(server, Reply({"error": "Unauthorized"}, 401))


async def test_answer_without_an_end_is_given_up(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "MOST_BYTES", 1000)
    with pytest.raises(TeacherError, match="longer than any right one"):
        await fetched(server, Reply({"tokenizer": "x" * 2000}))


def test_kept_files_are_a_tokenizer_under_the_name_of_what_they_say(tmp_path: Path) -> None:
    source, kept = tmp_path / "source", tmp_path / "kept"
    source.mkdir()
    write_tokenizer(source)
    files = read_files(str(source))
    assert files is not None
    place = keep(files, kept)
    assert keep(files, kept) == place
    assert [one.name for one in kept.iterdir()] == [place.name]
    assert read_files(str(place)) == files
    assert keep(TokenizerFiles(tokenizer="{}"), kept) != place


def test_files_are_kept_beside_the_byte_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path))
    assert keep(TokenizerFiles(tokenizer="{}")).parent == tmp_path / "served_tokenizers"

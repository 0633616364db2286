"""Where a teacher's tokenizer comes from, and which ones are refused with what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.envs import teacher_loading
from atroposlib.envs.teacher_loading import read_as_written
from atroposlib.envs.teacher_tokenizers import TeacherTokenizers
from atroposlib.errors import ConfigError, TeacherUnreachable
from tests.envs.fakes import group_of
from tests.envs.test_several_teachers import Config, Env
from tests.support.scripted_server import Reply, Request, ScriptedServer, scripted_server
from tests.support.tiny import write_tokenizer
from tests.support.tiny_teacher import write_merging_tokenizer

AWAY = "http://127.0.0.1:9"
ROUTE = "/v1/atropos/tokenizer"


@pytest.fixture
def directory(tmp_path: Path) -> Callable[..., Path]:
    """Makes directories of tokenizers: the student's, or the other one."""

    def make(name: str, *, other: bool) -> Path:
        made = tmp_path / name
        made.mkdir()
        (write_merging_tokenizer if other else write_tokenizer)(made)
        return made

    return make


@pytest.fixture
def student(directory: Callable[..., Path]) -> Any:
    return read_as_written(str(directory("student", other=False)))


@pytest.fixture
async def server(directory: Callable[..., Path]) -> AsyncIterator[ScriptedServer]:
    """A server that hands out the other tokenizer."""
    texts = {
        name: (directory("served", other=True) / file).read_text("utf-8") if name == "tokenizer" else None
        for name, file in (("tokenizer", "tokenizer.json"), ("config", ""))
    }
    async with scripted_server() as running:

        def answer(request: Request) -> Reply:
            return Reply(texts) if request.path == ROUTE else Reply({"detail": "Not Found"}, 404)

        running.answer = answer
        yield running


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(teacher_loading, "PATIENCE_SECONDS", 0.0)


def replicas(*servers: dict[str, str]) -> TeacherConfig:
    return TeacherConfig(replicas=[APIServerConfig(**{"base_url": AWAY, **one}) for one in servers])


async def test_the_students_own_name_is_not_read_again(student: Any) -> None:
    known = TeacherTokenizers(student, {"one": replicas({"tokenizer_name": student.name_or_path})})
    kin = known.of("one")
    assert kin is not None
    assert kin.tokenizer is student
    assert kin.same
    assert known.fingerprint("one", "students") == "students"


async def test_another_name_of_equal_ids_is_the_same(student: Any, directory: Callable[..., Path]) -> None:
    again = directory("again", other=False)
    kin = TeacherTokenizers(student, {"one": replicas({"model_name": str(again)})}).of("one")
    assert kin is not None
    assert kin.same


async def test_replicas_of_different_tokenizers_are_refused(
    student: Any, directory: Callable[..., Path]
) -> None:
    other = str(directory("other", other=True))
    mixed = replicas({"tokenizer_name": student.name_or_path}, {"tokenizer_name": other})
    with pytest.raises(ConfigError, match="different tokenizers"):
        TeacherTokenizers(student, {"one": mixed})


async def test_named_tokenizer_that_is_not_there_is_refused_and_a_models_name_is_not(
    student: Any, tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"teachers\.one\.tokenizer_name"):
        TeacherTokenizers(student, {"one": replicas({"tokenizer_name": nowhere})})
    known = TeacherTokenizers(student, {"one": replicas({"model_name": nowhere})})
    assert known.of("one") is None
    assert known.fingerprint("one", "students") == ""


async def test_tokenizer_that_only_the_server_knows_is_asked_for(
    student: Any, server: ScriptedServer
) -> None:
    known = TeacherTokenizers(student, {"one": replicas({}, {"base_url": server.url})})
    # Its first server is away, so the second is asked.
    await known.complete("one")
    await known.complete("one")
    kin = known.of("one")
    assert kin is not None
    assert not kin.same
    assert known.fingerprint("one", "students") == kin.fingerprint != ""
    assert [request.path for request in server.requests] == [ROUTE]


async def test_nobody_who_tells_the_tokenizer_is_a_mistake_in_the_settings(
    student: Any, server: ScriptedServer
) -> None:
    server.answer = lambda _: Reply({"detail": "Not Found"}, 404)
    known = TeacherTokenizers(student, {"one": replicas({"base_url": server.url})})
    with pytest.raises(ConfigError, match="set tokenizer_name"):
        await known.complete("one")


async def test_what_a_server_hands_out_may_be_no_tokenizer(student: Any, server: ScriptedServer) -> None:
    server.answer = lambda _: Reply({"tokenizer": '{"model": 1}'})
    known = TeacherTokenizers(student, {"one": replicas({"base_url": server.url})})
    with pytest.raises(ConfigError, match="cannot be loaded"):
        await known.complete("one")


async def test_servers_that_are_away_leave_it_unknown(student: Any) -> None:
    known = TeacherTokenizers(student, {"one": replicas({})})
    with pytest.raises(TeacherUnreachable):
        await known.complete("one")


async def test_tokenizers_that_cannot_be_aligned_are_refused_with_the_reason(
    directory: Callable[..., Path],
) -> None:
    slow = SimpleNamespace(
        name_or_path="slow",
        get_vocab=lambda: {"a": 0},
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    )
    other = replicas({"tokenizer_name": str(directory("other", other=True))})
    with pytest.raises(ConfigError, match="slow tokenizer") as caught:
        TeacherTokenizers(slow, {"one": other})
    assert caught.value.code == "align.unsupported"


async def test_group_of_a_teacher_whose_tokenizer_stays_unknown_is_as_if_it_were_away(student: Any) -> None:
    config = Config(tokenizer_name=student.name_or_path, teacher_enabled=True)
    env: Any = Env(config, [], testing=True, teachers={"one": TeacherConfig(base_url=AWAY)})
    try:
        # Without a loop that it could go back to, the group is dropped.
        assert await env._attach_teacher_distillation(group_of(0.0, 1.0)) is None
        assert env.runtime.counters.dropped == {"teacher_unreachable": 1}
    finally:
        await env.runtime.close()
        await env.close_servers()


class Vouching(Env):
    """Knows that its teacher has the student's ids."""

    def _validate_teacher_tokenizer_compatibility(self, teacher_tokenizer_name: str) -> None:
        self.vouched_for = teacher_tokenizer_name


async def test_override_of_the_comparison_vouches_for_one_vocabulary(student: Any) -> None:
    config = Config(tokenizer_name=student.name_or_path, teacher_enabled=True)
    plain = APIServerConfig(base_url=AWAY, tokenizer_name="anything")
    env: Any = Vouching(config, [], testing=True, teacher_server_configs=plain)
    assert env.vouched_for == "anything"
    assert not env._teacher_set.is_other("teacher")

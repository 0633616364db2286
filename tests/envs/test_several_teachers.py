"""Several teachers of a group: who is asked, what travels for each, and that each value is its teacher's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.config.teacher import TeacherConfig
from atroposlib.envs.teacher_distillation_env import TeacherDistillationConfig, TeacherDistillationEnv
from atroposlib.errors import ConfigError, TeacherError
from atroposlib.teacher.protocol import Capabilities
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import decode_group, encode_group
from tests.envs.fake_teachers import FakeTeacher, install, row, server_of, truth
from tests.envs.fakes import FakeApi, ToyConfig, ToyEnv

K = 4


class Config(ToyConfig, TeacherDistillationConfig):
    """Toy settings with teachers."""


class Env(ToyEnv, TeacherDistillationEnv):
    """The toy environment with teachers."""

    env_config_cls = Config


@pytest.fixture
def make(tokenizer_dir: Path) -> Callable[..., Any]:
    """Builds an environment whose teachers are fakes."""

    def build(
        *teachers: FakeTeacher, configs: dict[str, TeacherConfig] | None = None, **settings: Any
    ) -> Any:
        config = Config(tokenizer_name=str(tokenizer_dir), teacher_enabled=True, teacher_top_k=K, **settings)
        env = Env(config, [], testing=True, teacher_server_configs=[server_of(tokenizer_dir)])
        install(env, {one.name: one for one in teachers}, **(configs or {}))
        return env

    return build


def group(**more: Any) -> Any:
    """Two sequences with a gap in what is trained of the first, and an untrained end of the second."""
    return {
        "tokens": [[1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 8, 7]],
        "masks": [[-100, -100, 3, 4, -100, -100, 7], [-100, -100, 9, 8, -100]],
        "scores": [0.0, 1.0],
        **more,
    }


TRAINED = [(0, 2), (0, 3), (0, 6), (1, 2), (1, 3)]


def assert_truth(name: str, ids: Any, logprobs: Any, k: int = K, kept: Sequence[Any] = TRAINED) -> None:
    """Kept rows are the teacher's own; all others are absent."""
    tokens = group()["tokens"]
    for index, sequence in enumerate(tokens):
        for position in range(len(sequence)):
            got = list(zip(ids[index][position].tolist(), logprobs[index][position].tolist(), strict=True))
            if (index, position) not in kept:
                assert all(pair == (-1, -9999.0) for pair in got)
                continue
            columns, values = row(name, sequence, position, k)
            expected = [
                (column, value if column >= 0 else -9999.0)
                for column, value in zip(columns, values, strict=True)
            ]
            assert got[: k + 1] == expected


async def test_plain_teacher_ships_its_arrays_alone(make: Callable[..., Any]) -> None:
    out = await make(FakeTeacher("teacher"))._attach_teacher_distillation(group())
    assert_truth("teacher", out["distill_token_ids"], out["distill_logprobs"])
    assert "teachers" not in out
    assert all(isinstance(rows, np.ndarray) for rows in out["distill_token_ids"])


async def test_only_what_is_trained_is_asked_and_nothing_behind_it(make: Callable[..., Any]) -> None:
    teacher = FakeTeacher("teacher")
    await make(teacher)._attach_teacher_distillation(group())
    assert teacher.asked == [([1, 2, 3, 4, 5, 6, 7], K, 2), ([1, 2, 9, 8], K, 2)]


async def test_all_positions_are_kept_where_that_is_asked_for(make: Callable[..., Any]) -> None:
    env = make(FakeTeacher("teacher"), teacher_positions="all")
    out = await env._attach_teacher_distillation(group())
    everywhere = [(i, p) for i, ids in enumerate(group()["tokens"]) for p in range(1, len(ids))]
    assert_truth("teacher", out["distill_token_ids"], out["distill_logprobs"], kept=everywhere)


async def test_sequence_without_a_trained_token_asks_nobody(make: Callable[..., Any]) -> None:
    teacher = FakeTeacher("teacher")
    env = make(teacher)
    out = await env._attach_teacher_distillation(group(masks=[[-100] * 7, [-100] * 5]))
    assert teacher.asked == []
    assert out["distill_token_ids"] is None
    assert env.runtime.counters.dropped == {}


async def test_named_teachers_travel_as_entries_and_the_first_as_distill(make: Callable[..., Any]) -> None:
    configs = {"code": TeacherConfig(base_url="http://c", weight=0.5, top_k=2)}
    env = make(FakeTeacher("math"), FakeTeacher("code"), configs=configs)
    out = await env._attach_teacher_distillation(group())
    first, second = out["teachers"]
    assert_truth("math", first["token_ids"], first["logprobs"])
    assert_truth("code", second["token_ids"], second["logprobs"], k=2)
    assert out["distill_token_ids"] is first["token_ids"]
    facts = {name: second[name] for name in ("name", "weight", "same_tokenizer", "temperature")}
    assert facts == {"name": "code", "weight": 0.5, "same_tokenizer": True, "temperature": 1.0}
    assert second["tokenizer_fingerprint"] == "print"


async def test_entries_pass_the_wire_and_are_stored_once(make: Callable[..., Any]) -> None:
    env = make(FakeTeacher("math"), FakeTeacher("code"))
    out = await env._attach_teacher_distillation(group())
    arrays = decode_group(encode_group(to_arrays(out, strict=True), logprob_dtype="float32"))
    check_group(arrays)
    assert arrays.targets is arrays.teachers[0].targets
    assert [teacher.facts["name"] for teacher in arrays.teachers] == ["math", "code"]


async def test_teacher_that_failed_on_all_of_it_leaves_the_others_alone(make: Callable[..., Any]) -> None:
    def broken(ids: Sequence[int]) -> None:
        raise TeacherError("broken", code="teacher.failed")

    env = make(FakeTeacher("math", broken), FakeTeacher("code"))
    out = await env._attach_teacher_distillation(group())
    first, second = out["teachers"]
    assert "token_ids" not in first
    assert out["distill_token_ids"] is second["token_ids"]
    assert env.runtime.counters.masked == {"teacher_failed": len(TRAINED)}
    assert env.runtime.counters.teacher_failures == {"teacher.failed": 2}
    told = env._teacher_set.metrics(env.runtime.counters)
    assert (told["teacher_token_frac/math"], told["teacher_token_frac/code"]) == (0.0, 1.0)
    assert "math 0.0%, code 100.0%" in env.runtime.counters.line()


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        ({}, ["math", "code"]),
        ({"teacher": "code"}, ["code"]),
        ({"teacher": ["quiet", "math"]}, ["math", "quiet"]),
        ({"teacher_weights": {"math": 0}}, ["code"]),
        ({"teacher_top_k": -1}, []),
        ({"skip_teacher_top_k": True}, []),
    ],
)
async def test_overrides_of_a_group_choose_its_teachers(
    make: Callable[..., Any], overrides: Any, asked: list[str]
) -> None:
    teachers = [FakeTeacher(name) for name in ("math", "code", "quiet")]
    env = make(*teachers, configs={"quiet": TeacherConfig(base_url="http://q", route="named")})
    out = await env._attach_teacher_distillation(group(group_overrides=overrides))
    assert [teacher.name for teacher in teachers if teacher.asked] == asked
    assert [entry["name"] for entry in out.get("teachers") or []] == asked
    if not asked:
        assert (out["distill_token_ids"], out["distill_logprobs"]) == (None, None)


async def test_weights_of_the_overrides_travel(make: Callable[..., Any]) -> None:
    env = make(FakeTeacher("math"), FakeTeacher("code"))
    out = await env._attach_teacher_distillation(group(group_overrides={"teacher_weights": {"code": 3}}))
    assert [entry["weight"] for entry in out["teachers"]] == [1.0, 3.0]


async def test_mistyped_teacher_of_a_group_is_told_with_the_nearest_name(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="did you mean math"):
        await make(FakeTeacher("math"))._attach_teacher_distillation(
            group(group_overrides={"teacher": "mth"})
        )


async def test_group_with_images_is_masked_for_that_reason_and_sent(make: Callable[..., Any]) -> None:
    teacher = FakeTeacher("teacher")
    env = make(teacher)
    out = await env._attach_teacher_distillation(group(images=["picture", None]))
    assert (teacher.asked, out["distill_token_ids"]) == ([], None)
    assert env.runtime.counters.masked == {"teacher_images": len(TRAINED)}
    assert env.runtime.counters.dropped == {}


async def test_teacher_that_takes_images_is_asked(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Env, "teacher_takes_images", True)
    teacher = FakeTeacher("teacher")
    await make(teacher)._attach_teacher_distillation(group(images=["picture", None]))
    assert len(teacher.asked) == 2


async def test_what_lies_behind_the_servers_context_is_masked(make: Callable[..., Any]) -> None:
    teacher = FakeTeacher("teacher")
    teacher.capabilities = [Capabilities("plugin", "vllm", "m", max_model_len=6)]
    env = make(teacher)
    out = await env._attach_teacher_distillation(group())
    assert [ids for ids, _, _ in teacher.asked] == [[1, 2, 3, 4, 5], [1, 2, 9, 8]]
    assert_truth(
        "teacher", out["distill_token_ids"], out["distill_logprobs"], kept=[(0, 2), (0, 3), (1, 2), (1, 3)]
    )
    assert env.runtime.counters.masked == {"teacher_overlength": 1}


class OfTwo(Env):
    """Overrides the hook as environments written for Atropos do."""

    async def _fetch_teacher_for_sequence(self, token_ids: Any, top_k: Any) -> Any:
        ids, logprobs = await super()._fetch_teacher_for_sequence(token_ids, top_k)
        return ids, logprobs - 1.0


async def test_override_of_atroposs_two_arguments_is_called(tokenizer_dir: Path) -> None:
    config = Config(tokenizer_name=str(tokenizer_dir), teacher_enabled=True, teacher_top_k=K)
    env: Any = OfTwo(config, [], testing=True, teacher_server_configs=[server_of(tokenizer_dir)])
    teacher = FakeTeacher("teacher")
    install(env, {"teacher": teacher})
    out = await env._attach_teacher_distillation(group())
    assert [start for _, _, start in teacher.asked] == [1, 1]
    expected = truth("teacher", [1, 2])[3] - 1.0
    assert out["distill_logprobs"][0][2][0] == pytest.approx(expected)
    assert out["distill_token_ids"][0][1].tolist() == [-1] * (K + 1)


async def test_override_that_knows_no_teachers_answers_for_the_first_alone(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(FakeTeacher("math"), FakeTeacher("code"))
    own = env._fetch_teacher_for_sequence

    async def of_two(token_ids: Any, top_k: int) -> Any:
        return await own(token_ids, top_k)

    monkeypatch.setattr(env, "_fetch_teacher_for_sequence", of_two)
    out = await env._attach_teacher_distillation(group())
    first, second = out["teachers"]
    assert_truth("math", first["token_ids"], first["logprobs"])
    # What math says must not pass for what code says.
    assert "token_ids" not in second
    assert env.runtime.counters.masked == {"config_invalid": len(TRAINED)}


@pytest.mark.parametrize(("policy", "scored"), [("mask", 3), ("drop", 0), ("send_without", 0)])
async def test_targets_that_are_not_sent_are_not_counted_as_scored(
    make: Callable[..., Any], policy: str, scored: int
) -> None:
    def second_breaks(ids: Sequence[int]) -> None:
        if ids[2] == 9:
            raise TeacherError("broken", code="teacher.failed")

    env = make(FakeTeacher("teacher", second_breaks), on_teacher_failure=policy)
    await env._attach_teacher_distillation(group())
    counters = env.runtime.counters
    assert (counters.teachers["teacher"].wanted, counters.teachers["teacher"].scored) == (5, scored)
    assert counters.masked == {"teacher_failed": 5 - scored}


@pytest.mark.parametrize(
    "overrides",
    [{"teacher": 3}, {"teacher": [3]}, {"teacher_weights": [1]}, {"teacher_weights": {"math": "much"}}],
)
async def test_overrides_of_another_type_are_told(make: Callable[..., Any], overrides: Any) -> None:
    with pytest.raises(ConfigError, match="group_overrides"):
        await make(FakeTeacher("math"))._attach_teacher_distillation(group(group_overrides=overrides))


async def test_replaced_get_logprobs_is_asked_for_the_first_teacher_only(make: Callable[..., Any]) -> None:
    env = make(FakeTeacher("math"), FakeTeacher("code"))
    asked: list[Any] = []

    async def get_logprobs(**kwargs: Any) -> Any:
        asked.append(kwargs["input_ids"])
        rows = [[token, 7] for token in kwargs["input_ids"]]
        return {"prompt_topk_token_ids": rows, "prompt_topk_logprobs": [[-1.0, -2.0] for _ in rows]}

    env.teacher_server.get_logprobs = get_logprobs
    out = await env._attach_teacher_distillation(group())
    assert len(asked) == 2
    assert env.teachers["math"].asked == []
    assert out["teachers"][0]["token_ids"][1] == [[-1, -1], [-1, -1], [9, 7], [8, 7], [-1, -1]]
    assert_truth("code", out["teachers"][1]["token_ids"], out["teachers"][1]["logprobs"])


# The student's own top-k.


class Student:
    """The student's server as a teacher of itself."""

    servers: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.teacher = FakeTeacher("student")

    async def score(self, ids: Sequence[int], top_k: int, start: int = 1) -> Any:
        return await self.teacher.score(ids, top_k, start)


async def test_students_own_top_k_are_further_columns_that_no_id_is_twice_in(
    make: Callable[..., Any],
) -> None:
    env = make(FakeTeacher("teacher"), student_top_k=50)
    env.server = Student()
    out = await env._attach_teacher_distillation(group())
    extra = 0
    for index, position in TRAINED:
        sequence = group()["tokens"][index]
        ids = out["distill_token_ids"][index][position].tolist()
        logprobs = out["distill_logprobs"][index][position].tolist()
        present = [column for column in ids if column >= 0]
        wanted = set(row("teacher", sequence, position, K)[0]) | set(
            row("student", sequence, position, 50)[0]
        )
        assert set(present) == wanted - {-1}
        assert len(present) == len(set(present))
        table = truth("teacher", sequence[:position])
        for column, logprob in zip(ids, logprobs, strict=True):
            assert logprob == (table[column] if column >= 0 else -9999.0)
        extra += len(present) - K - 1
    assert extra > 0
    check_group(decode_group(encode_group(to_arrays(out, strict=True))))


@pytest.mark.parametrize("capabilities", [[], [Capabilities("completions", "vllm", "m")]])
async def test_teacher_that_takes_no_ids_is_told_once(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture, capabilities: list[Capabilities]
) -> None:
    teacher = FakeTeacher("teacher", takes_ids=False)
    teacher.capabilities = capabilities
    env = make(teacher, student_top_k=3)
    env.server = Student()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            out = await env._attach_teacher_distillation(group())
    assert_truth("teacher", out["distill_token_ids"], out["distill_logprobs"])
    assert sum("student_top_k" in record.message for record in caplog.records) == 1
    assert len(env.server.teacher.asked) == (0 if capabilities else 6)


async def test_student_that_cannot_be_asked_costs_only_its_columns(make: Callable[..., Any]) -> None:
    env = make(FakeTeacher("teacher"), student_top_k=3)
    env.server = Student()

    def broken(ids: Sequence[int]) -> None:
        raise TeacherError("no logprobs here", code="teacher.refused")

    env.server.teacher = FakeTeacher("student", broken)
    out = await env._attach_teacher_distillation(group())
    assert_truth("teacher", out["distill_token_ids"], out["distill_logprobs"])
    assert env.runtime.counters.dropped == {}


async def test_arrays_arrive_at_the_api_as_they_were_scored(api: FakeApi, make: Callable[..., Any]) -> None:
    env = make(FakeTeacher("math"), FakeTeacher("code"), rollout_server_url=api.url, logprob_dtype="float32")
    await env.handle_send_to_api(group())
    await env.runtime.close()
    (posted,) = api.groups
    for name, entry in zip(("math", "code"), posted["teachers"], strict=True):
        arrays = [[np.array(rows) for rows in entry[key]] for key in ("token_ids", "logprobs")]
        for index, position in TRAINED:
            ids, logprobs = row(name, group()["tokens"][index], position, K)
            assert arrays[0][index][position].tolist() == ids
            assert arrays[1][index][position][:K] == pytest.approx(logprobs[:K])

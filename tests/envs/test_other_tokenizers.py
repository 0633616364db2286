"""Teachers with another tokenizer on real model servers: what travels is their own forward, in chunks."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import PLAIN_NAME
from atroposlib.envs import teacher_set
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import ConfigError
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.checks import check_group
from atroposlib.wire.frame import decode_group, encode_group
from tests.envs.test_several_teachers import Config, Env
from tests.support.running_model_server import running_model_server
from tests.support.tiny import write_tiny_model
from tests.support.tiny_teacher import END, START, TEMPLATE, write_other_model

K = 5
TOLERANCE = 3e-4
STUDENT_END = 258
QUESTION = [{"role": "user", "content": "the seven in a sever?"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "student": write_tiny_model(folder / "student", seed=0),
        "same": write_tiny_model(folder / "same", seed=1),
        "other": write_other_model(folder / "other", seed=2),
    }


@pytest.fixture(scope="module")
def urls(models: dict[str, Path]) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(running_model_server(directory, served_model_name=f"a {name}"))
            for name, directory in models.items()
        }
        yield found | {"short": stack.enter_context(running_model_server(models["other"], max_model_len=48))}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path / "cache"))


@asynccontextmanager
async def environment(
    models: dict[str, Path], teachers: dict[str, TeacherConfig], plain: Any = None, **settings: Any
) -> Any:
    config = Config(
        tokenizer_name=str(models["student"]),
        teacher_enabled=True,
        teacher_top_k=K,
        logprob_dtype="float32",
        **settings,
    )
    env = Env(config, [], testing=True, teachers=teachers, teacher_server_configs=plain)
    try:
        yield env
    finally:
        await env.runtime.close()
        await env.close_servers()


def teacher(url: str, **settings: Any) -> TeacherConfig:
    return TeacherConfig(base_url=url, **settings)


def student_tokenizer(models: dict[str, Path]) -> Any:
    return read_tokenizer(str(models["student"]))


def replies(tokenizer: Any) -> Any:
    """Two replies to one question: one in two turns, and one that ends at once and speaks of a marker."""
    prompt = tokenizer.apply_chat_template(QUESTION, tokenize=True, add_generation_prompt=True)["input_ids"]
    first = [*b"the three were in a", STUDENT_END]
    between = [*b"\n", 257, *b"user\nSure?", STUDENT_END, *b"\n", 257, *b"assistant\n"]
    second = [*"naïve seven".encode(), STUDENT_END]
    third = [*b" <|end|> the", STUDENT_END]
    tokens = [prompt + first + between + second, prompt + third]
    masks = [
        [-100] * len(prompt) + first + [-100] * len(between) + second,
        [-100] * len(prompt) + third,
    ]
    return {"tokens": tokens, "masks": masks, "scores": [0.0, 1.0]}


TEXTS = [
    f"<s>{START}user\n\nthe seven in a sever?{END}{START}assistant\n\nthe three were in a{END}"
    f"{START}user\n\nSure?{END}{START}assistant\n\nnaïve seven{END}",
    f"<s>{START}user\n\nthe seven in a sever?{END}{START}assistant\n\n <|end|> the{END}",
]
"""What the teacher is to read, written by hand."""


def forward(directory: Path, ids: list[int]) -> Any:
    """float64 logprobs [T - 1, V]; row p speaks of token p + 1."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).numpy()


def members(chunk_ids: Any) -> dict[int, list[int]]:
    """The positions of each chunk."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, chunk in enumerate(np.asarray(chunk_ids).tolist()):
        if chunk >= 0:
            found[chunk].append(position)
    return dict(found)


def text_of(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids)
    return (
        text.replace("<|im_end|>", "[end]").replace(END, "[end]") if ids in ([STUDENT_END], [267]) else text
    )


async def test_chunks_hold_equal_text_and_the_teachers_own_forward_pass(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    student, theirs = student_tokenizer(models), read_tokenizer(str(models["other"]))
    group = replies(student)
    async with environment(
        models, {"big": teacher(urls["other"], tokenizer_name=str(models["other"]))}
    ) as env:
        out = await env._attach_teacher_distillation(group)
        [entry] = out["teachers"]
        assert entry["same_tokenizer"] is False
        assert entry["model"] == "a other"
        assert out["distill_token_ids"] is None
        assert env.runtime.counters.masked == {}
        for index, text in enumerate(TEXTS):
            ids = entry["tokens"][index].tolist()
            assert theirs.decode(ids) == text
            ours = members(entry["student_chunk_id"][index])
            there = members(entry["teacher_chunk_id"][index])
            trained = [position for position, mask in enumerate(group["masks"][index]) if mask != -100]
            assert sorted(chain.from_iterable(ours.values())) == trained
            assert list(ours) == list(there) == list(range(len(ours)))
            exact = forward(models["other"], ids)
            for chunk, positions in ours.items():
                said = [group["tokens"][index][position] for position in positions]
                assert text_of(student, said) == text_of(theirs, [ids[at] for at in there[chunk]])
                rows = entry["logprobs"][index][there[chunk]]
                direct = sum(exact[at - 1, ids[at]] for at in there[chunk])
                assert rows[:, 0].sum() == pytest.approx(direct, abs=1e-3)
            outside = entry["teacher_chunk_id"][index] < 0
            assert (entry["token_ids"][index][outside] == -1).all()


async def test_rows_of_another_tokenizer_hold_its_own_top_k(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    async with environment(
        models, {"big": teacher(urls["other"], tokenizer_name=str(models["other"]))}
    ) as env:
        out = await env._attach_teacher_distillation(replies(env.tokenizer))
    [entry] = out["teachers"]
    ids = entry["tokens"][1].tolist()
    exact = forward(models["other"], ids)
    for at in np.flatnonzero(entry["teacher_chunk_id"][1] >= 0).tolist():
        columns = entry["token_ids"][1][at]
        present = columns[columns >= 0].tolist()
        assert columns[0] == ids[at]
        assert set(present) == {ids[at], *np.argsort(-exact[at - 1])[:K].tolist()}
        values = entry["logprobs"][1][at][columns >= 0]
        np.testing.assert_allclose(values, exact[at - 1, present], atol=TOLERANCE)


async def test_group_passes_the_wire_as_it_is(models: dict[str, Path], urls: dict[str, str]) -> None:
    teachers = {
        "same": teacher(urls["same"], tokenizer_name=str(models["same"])),
        "big": teacher(urls["other"], tokenizer_name=str(models["other"])),
    }
    group = replies(student_tokenizer(models))
    group["masks"][1] = [-100] * len(group["tokens"][1])
    async with environment(models, teachers) as env:
        out = await env._attach_teacher_distillation(group)
    arrays = decode_group(encode_group(to_arrays(out, strict=True), logprob_dtype="float32"))
    check_group(arrays)
    same, big = arrays.teachers
    assert (same.facts["same_tokenizer"], big.facts["same_tokenizer"]) == (True, False)
    assert arrays.targets is same.targets
    assert same.facts["tokenizer_fingerprint"] != big.facts["tokenizer_fingerprint"]
    assert big.tokens is not None
    assert big.tokens[0].tolist() == out["teachers"][1]["tokens"][0].tolist()
    # The second sequence trains nothing, so the teacher reads nothing of it.
    assert big.tokens[1].tolist() == []
    assert big.student_chunk_id is not None
    assert (big.student_chunk_id[1] == -1).all()


async def test_plain_teacher_with_another_tokenizer_travels_as_an_entry(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    plain = APIServerConfig(base_url=urls["other"], tokenizer_name=str(models["other"]))
    async with environment(models, {}, plain) as env:
        out = await env._attach_teacher_distillation(replies(env.tokenizer))
        counted = env.runtime.counters.teachers[PLAIN_NAME]
        assert counted.wanted == counted.scored == sum(m != -100 for mask in out["masks"] for m in mask)
    [entry] = out["teachers"]
    assert (entry["name"], entry["same_tokenizer"]) == (PLAIN_NAME, False)


async def test_tokenizer_that_nobody_names_is_the_servers_own(
    models: dict[str, Path], urls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with environment(models, {"big": teacher(urls["other"])}) as env:
        await env.check_servers()
        out = await env._attach_teacher_distillation(replies(env.tokenizer))
    assert out["teachers"][0]["same_tokenizer"] is False
    told = [record.message for record in caplog.records if record.name == teacher_set.__name__]
    assert any("has another tokenizer" in line for line in told)
    assert sum("distill_projection" in line for line in told) == 1


async def test_server_with_the_students_tokenizer_takes_the_short_way(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    async with environment(models, {"same": teacher(urls["same"])}) as env:
        await env.check_servers()
        out = await env._attach_teacher_distillation(replies(env.tokenizer))
    assert out["teachers"][0]["same_tokenizer"] is True
    assert out["distill_token_ids"] is out["teachers"][0]["token_ids"]


async def test_overlength_takes_out_the_chunks_behind_it(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    group = replies(student_tokenizer(models))
    async with environment(
        models, {"big": teacher(urls["short"], tokenizer_name=str(models["other"]))}
    ) as env:
        await env.check_servers()
        # Only what was probed says how long a sequence may be.
        await env.teachers["big"].connect(0)
        out = await env._attach_teacher_distillation(group)
        masked, covered = env.runtime.counters.masked, env.runtime.counters.teachers["big"]
    [entry] = out["teachers"]
    assert list(masked) == ["teacher_overlength"]
    assert covered.wanted == covered.scored + masked["teacher_overlength"]
    kept = sum(int((ids >= 0).sum()) for ids in entry["student_chunk_id"])
    assert covered.scored == kept > 0
    assert max(map(len, entry["tokens"])) <= 47
    for ours, there in zip(entry["student_chunk_id"], entry["teacher_chunk_id"], strict=True):
        assert sorted(members(ours)) == sorted(members(there)) == list(range(len(members(ours))))


async def test_context_of_a_teacher_stands_in_its_own_prompt(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    config = teacher(urls["other"], tokenizer_name=str(models["other"]), system_prompt="Be sure.")
    theirs = read_tokenizer(str(models["other"]))
    async with environment(models, {"big": config}) as env:
        group = replies(env.tokenizer) | {"group_overrides": {"teacher_context": "It is 7."}}
        out = await env._attach_teacher_distillation(group)
    text = theirs.decode(out["teachers"][0]["tokens"][1])
    assert text.startswith(f"<s>{START}system\n\nBe sure.\n\nIt is 7.{END}{START}user")


async def test_template_of_the_settings_is_the_teachers(
    models: dict[str, Path], urls: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE.replace("<s>", "<s>{{ mood }}{{ tools | length }}"), encoding="utf-8")
    config = teacher(
        urls["other"],
        tokenizer_name=str(models["other"]),
        chat_template=str(file),
        chat_template_kwargs={"mood": "calm", "tools": [{"type": "function", "function": {"name": "f"}}]},
    )
    async with environment(models, {"big": config}) as env:
        out = await env._attach_teacher_distillation(replies(env.tokenizer))
    theirs = read_tokenizer(str(models["other"]))
    assert theirs.decode(out["teachers"][0]["tokens"][0]) == TEXTS[0].replace("<s>", "<s>calm1")


async def test_whatever_a_template_raises_costs_its_sequence_alone(
    models: dict[str, Path], urls: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "template.jinja"
    raising = "{% if messages | length == 2 %}{{ 1 // 0 }}{% endif %}"
    file.write_text(raising + TEMPLATE, encoding="utf-8")
    named = teacher(urls["other"], tokenizer_name=str(models["other"]), chat_template=str(file))
    async with environment(models, {"big": named}) as env:
        group = replies(env.tokenizer)
        out = await env._attach_teacher_distillation(group)
        await env._attach_teacher_distillation(group)
        masked, covered = env.runtime.counters.masked, env.runtime.counters.teachers["big"]
    assert out["teachers"][0]["tokens"][1].tolist() == []
    assert out["teachers"][0]["tokens"][0].size
    assert masked == {"no_view": 2 * sum(mask != -100 for mask in group["masks"][1])}
    assert covered.wanted == covered.scored + masked.total()
    assert sum("ZeroDivisionError" in record.message for record in caplog.records) == 1


async def test_context_that_is_no_text_in_utf8_masks_its_sequence(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    named = teacher(urls["other"], tokenizer_name=str(models["other"]))
    async with environment(models, {"big": named}) as env:
        group = replies(env.tokenizer) | {"overrides": [{}, {"teacher_context": "\ud800"}]}
        await env._attach_teacher_distillation(group)
        assert set(env.runtime.counters.masked) == {"no_view"}


async def test_images_are_not_shown_to_a_teacher_with_another_tokenizer(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    async with environment(
        models, {"big": teacher(urls["other"], tokenizer_name=str(models["other"]))}
    ) as env:
        group = replies(env.tokenizer) | {"images": ["a picture", None]}
        out = await env._attach_teacher_distillation(group)
        assert set(env.runtime.counters.masked) == {"teacher_images"}
    assert "tokens" not in out["teachers"][0]


async def test_student_top_k_is_not_asked_of_a_teacher_with_another_tokenizer(
    models: dict[str, Path], urls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    named = teacher(urls["other"], tokenizer_name=str(models["other"]))
    async with environment(models, {"big": named}, student_top_k=4) as env:
        out = await env._attach_teacher_distillation(replies(env.tokenizer))
        await env._attach_teacher_distillation(replies(env.tokenizer))
    assert out["teachers"][0]["token_ids"][0].shape[1] == K + 1
    assert sum("student_top_k" in record.message for record in caplog.records) == 1


async def test_exact_projection_fills_distill_where_tokens_say_the_same(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    named = teacher(urls["other"], tokenizer_name=str(models["other"]))
    async with environment(models, {"big": named}, distill_projection="exact") as env:
        group = replies(env.tokenizer)
        out = await env._attach_teacher_distillation(group)
        inexact = env.runtime.counters.masked["not_exact"]
    [entry] = out["teachers"]
    filled = 0
    for index, (tokens, mask) in enumerate(zip(group["tokens"], group["masks"], strict=True)):
        ours = members(entry["student_chunk_id"][index])
        there = members(entry["teacher_chunk_id"][index])
        exact = forward(models["other"], entry["tokens"][index].tolist())
        chunk_at = {positions[0]: chunk for chunk, positions in ours.items() if len(positions) == 1}
        for position in range(len(tokens)):
            ids = out["distill_token_ids"][index][position]
            if position not in chunk_at:
                assert (ids == -1).all()
                continue
            filled += 1
            assert mask[position] == tokens[position] == ids[0]
            table = exact[there[chunk_at[position]][0] - 1]
            logprobs = out["distill_logprobs"][index][position]
            for number, logprob in zip(ids.tolist(), logprobs.tolist(), strict=True):
                # Bytes have one id in both; the end of a turn has another number in each.
                same = 267 if number == STUDENT_END else number
                assert number == -1 or (number < 256 or number == STUDENT_END)
                assert number == -1 or logprob == pytest.approx(table[same], abs=TOLERANCE)
    assert 0 < filled == sum(m != -100 for mask in group["masks"] for m in mask) - inexact


async def test_same_tokenizer_setting_refuses_another_one(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    named = teacher(urls["other"], tokenizer_name=str(models["other"]))
    with pytest.raises(ConfigError, match="Cross-tokenizer distillation is not supported"):
        async with environment(models, {"big": named}, alignment="same_tokenizer"):
            pass


async def test_server_is_compared_with_the_teachers_tokenizer(
    models: dict[str, Path], urls: dict[str, str]
) -> None:
    """A server of the student's tokenizer that is said to have the other one."""
    wrong = teacher(urls["same"], tokenizer_name=str(models["other"]))
    async with environment(models, {"big": wrong}) as env:
        with pytest.raises(ConfigError, match="stand for other texts") as caught:
            await env.check_servers()
    assert str(models["other"]) in str(caught.value)


async def test_teacher_that_is_off_is_not_asked_for_its_tokenizer(models: dict[str, Path]) -> None:
    away = teacher("http://127.0.0.1:9", model_name="of its own")
    async with environment(models, {"big": away}) as env:
        env.config.teacher_top_k = -1
        await env.check_servers()

"""Context that only a teacher sees: what it reads, and that its rows stand at the student's positions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.config.teacher import TeacherConfig
from atroposlib.envs.teacher_context import context_of
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import ConfigError
from tests.envs.fake_teachers import FakeTeacher, install, row, server_of
from tests.envs.test_several_teachers import Config, Env

K = 3
QUESTION = [{"role": "user", "content": "2+2?"}]
REPLIES = ["4", "five"]


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Any:
    return read_tokenizer(str(tokenizer_dir))


@pytest.fixture
def make(tokenizer_dir: Path) -> Callable[..., Any]:
    """Builds an environment with one fake teacher of these settings."""

    def build(teacher: FakeTeacher, settings: dict[str, Any] | None = None, **config: Any) -> Any:
        env = Env(
            Config(tokenizer_name=str(tokenizer_dir), teacher_enabled=True, teacher_top_k=K, **config),
            [],
            testing=True,
            teacher_server_configs=[server_of(tokenizer_dir)],
        )
        own = TeacherConfig(base_url="http://t", tokenizer_name=str(tokenizer_dir), **(settings or {}))
        install(env, {teacher.name: teacher}, **{teacher.name: own})
        return env

    return build


def prompt_ids(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def conversation(tokenizer: Any, messages: list[dict[str, str]] = QUESTION, **more: Any) -> Any:
    """A group of one turn: the rendered question, then each reply and the end of its turn."""
    prompt = prompt_ids(tokenizer, messages)
    replies = [[*tokenizer.encode(reply, add_special_tokens=False), 258] for reply in REPLIES]
    return {
        "tokens": [prompt + reply for reply in replies],
        "masks": [[-100] * len(prompt) + reply for reply in replies],
        "scores": [1.0, 0.0],
        "messages": [[*messages, {"role": "assistant", "content": reply}] for reply in REPLIES],
        **more,
    }


def assert_read_after(out: Any, group: Any, index: int, prompt: list[int]) -> None:
    """The rows of a sequence are what the teacher says of its tokens after ``prompt``."""
    tokens, mask = group["tokens"][index], group["masks"][index]
    first = next(position for position, value in enumerate(mask) if value != -100)
    read = prompt + tokens[first:]
    for position in range(len(tokens)):
        ids = out["distill_token_ids"][index][position].tolist()
        if mask[position] == -100:
            assert set(ids) == {-1}
            continue
        expected, logprobs = row("teacher", read, position - first + len(prompt), K)
        assert ids == expected
        present = np.isfinite(logprobs)
        got = np.array(out["distill_logprobs"][index][position])
        assert got[present].tolist() == np.float32(logprobs)[present].tolist()


async def test_system_prompt_of_the_teacher_moves_no_row(make: Callable[..., Any], tokenizer: Any) -> None:
    env = make(FakeTeacher("teacher"), {"system_prompt": "You know it."})
    group = conversation(tokenizer)
    out = await env._attach_teacher_distillation(group)
    prompt = prompt_ids(tokenizer, [{"role": "system", "content": "You know it."}, *QUESTION])
    for index in range(2):
        assert_read_after(out, group, index, prompt)
    assert env.runtime.counters.masked == {}


async def test_contexts_of_group_and_sequence_follow_the_system_prompt(
    make: Callable[..., Any], tokenizer: Any
) -> None:
    env = make(FakeTeacher("teacher"), {"system_prompt": "A"})
    messages = [{"role": "system", "content": "own"}, *QUESTION]
    group = conversation(
        tokenizer,
        messages,
        group_overrides={"teacher_context": "B"},
        overrides=[{"teacher_context": "C"}, {}],
    )
    out = await env._attach_teacher_distillation(group)
    for index, text in enumerate(("A\n\nB\n\nC\n\nown", "A\n\nB\n\nown")):
        prompt = prompt_ids(tokenizer, [{"role": "system", "content": text}, *QUESTION])
        assert_read_after(out, group, index, prompt)


async def test_only_sequences_with_a_context_are_rendered_anew(
    make: Callable[..., Any], tokenizer: Any
) -> None:
    teacher = FakeTeacher("teacher")
    group = conversation(tokenizer, overrides=[{"teacher_context": "hint"}, {}])
    await make(teacher)._attach_teacher_distillation(group)
    assert teacher.asked[0][0] != group["tokens"][0]
    assert teacher.asked[1][0] == group["tokens"][1]


async def test_later_turns_stand_verbatim_behind_the_first(make: Callable[..., Any], tokenizer: Any) -> None:
    env = make(FakeTeacher("teacher"), {"system_prompt": "hint"})
    group = conversation(tokenizer)
    tail = tokenizer.encode("\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n")
    again = [*tokenizer.encode("yes"), 258]
    group["tokens"][0] += tail + again
    group["masks"][0] += [-100] * len(tail) + again
    group["messages"][0] += [{"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"}]
    out = await env._attach_teacher_distillation(group)
    prompt = prompt_ids(tokenizer, [{"role": "system", "content": "hint"}, *QUESTION])
    assert_read_after(out, group, 0, prompt)


async def test_examples_before_the_trained_reply_belong_to_the_prompt(
    make: Callable[..., Any], tokenizer: Any
) -> None:
    shots = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}, *QUESTION]
    env = make(FakeTeacher("teacher"), {"system_prompt": "hint"})
    group = conversation(tokenizer, shots)
    out = await env._attach_teacher_distillation(group)
    assert_read_after(out, group, 0, prompt_ids(tokenizer, [{"role": "system", "content": "hint"}, *shots]))


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [[{"role": "user", "content": "2+3?"}]] * 2,
        [[{"role": "user", "content": "2+2? "}, {"role": "assistant", "content": "4"}]] * 2,
    ],
)
async def test_messages_that_are_not_the_students_prompt_are_masked(
    make: Callable[..., Any], tokenizer: Any, messages: Any, caplog: pytest.LogCaptureFixture
) -> None:
    teacher = FakeTeacher("teacher")
    env = make(teacher, {"system_prompt": "hint"})
    group = conversation(tokenizer)
    group["messages"] = messages
    assert await env._attach_teacher_distillation(group) is None
    assert teacher.asked == []
    wanted = sum(value != -100 for mask in group["masks"] for value in mask)
    assert env.runtime.counters.masked == {"teacher_context_mismatch": wanted}
    assert env.runtime.counters.dropped == {"teacher_context_mismatch": 1}
    await env._attach_teacher_distillation(group)
    (told,) = (record.message for record in caplog.records if "context" in record.message)
    assert ("no messages" in told) is (messages is None)


async def test_one_mismatch_masks_its_sequence_alone(make: Callable[..., Any], tokenizer: Any) -> None:
    env = make(FakeTeacher("teacher"), {"system_prompt": "hint"})
    group = conversation(tokenizer)
    group["messages"][0] = [{"role": "user", "content": "another"}]
    out = await env._attach_teacher_distillation(group)
    assert (out["distill_token_ids"][0] == -1).all()
    assert_read_after(
        out, group, 1, prompt_ids(tokenizer, [{"role": "system", "content": "hint"}, *QUESTION])
    )


async def test_without_a_template_text_stands_before_the_students_tokens(
    make: Callable[..., Any], tokenizer: Any
) -> None:
    teacher = FakeTeacher("teacher")
    env = make(teacher, {"system_prompt": "hint ", "chat_template": None})
    group = {**conversation(tokenizer), "messages": None}
    out = await env._attach_teacher_distillation(group)
    head = tokenizer.encode("hint ")
    assert teacher.asked[0][0] == head + group["tokens"][0]
    first = group["masks"][0].index(next(value for value in group["masks"][0] if value != -100))
    assert_read_after(out, group, 0, head + group["tokens"][0][:first])


async def test_text_stands_behind_the_token_that_begins_a_text(
    make: Callable[..., Any], tokenizer: Any
) -> None:
    teacher = FakeTeacher("teacher")
    env = make(teacher, {"system_prompt": "hint", "chat_template": None})
    env.tokenizer.bos_token = "<|endoftext|>"
    group = {"tokens": [[256, 65, 66]], "masks": [[-100, -100, 66]], "scores": [1.0]}
    await env._attach_teacher_distillation(group)
    assert teacher.asked == [([256, *tokenizer.encode("hint"), 65, 66], K, 6)]


async def test_template_of_a_file_is_the_teachers_alone(
    make: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] ")
    env = make(FakeTeacher("teacher"), {"system_prompt": "hint", "chat_template": str(file)})
    group = conversation(tokenizer)
    out = await env._attach_teacher_distillation(group)
    prompt = tokenizer.encode("[system] hint\n[user] 2+2?\n[assistant] ")
    assert_read_after(out, group, 0, prompt)


async def test_template_that_refuses_a_system_prompt_masks(
    make: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}")
    env = make(FakeTeacher("teacher"), {"system_prompt": "hint", "chat_template": str(file)})
    assert await env._attach_teacher_distillation(conversation(tokenizer)) is None
    assert env.runtime.counters.dropped == {"teacher_context_mismatch": 1}


async def test_missing_template_file_is_told(
    make: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    env = make(FakeTeacher("teacher"), {"system_prompt": "h", "chat_template": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="none"):
        await env._attach_teacher_distillation(conversation(tokenizer))


def test_context_that_is_no_text_is_told() -> None:
    with pytest.raises(ConfigError, match="teacher_context"):
        context_of(TeacherConfig(), {"group_overrides": {"teacher_context": 5}}, 0)


async def test_servers_context_counts_the_teachers_own_prompt(
    make: Callable[..., Any], tokenizer: Any
) -> None:
    from atroposlib.teacher.protocol import Capabilities

    group = conversation(tokenizer)
    prompt = prompt_ids(tokenizer, [{"role": "system", "content": "hint"}, *QUESTION])
    teacher = FakeTeacher("teacher")
    # Room for the prompt and two tokens of the reply; one more is sampled.
    teacher.capabilities = [Capabilities("plugin", "", "m", max_model_len=len(prompt) + 3)]
    env = make(teacher, {"system_prompt": "hint"})
    out = await env._attach_teacher_distillation(group)
    scored = (out["distill_token_ids"][1][:, 0] >= 0).sum()
    assert scored == 2
    assert env.runtime.counters.masked == {"teacher_overlength": len("five") + 1 - 2}

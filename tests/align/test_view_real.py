"""Views of real pairs of tokenizers in their own chat templates."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.align.views.viewer import TeacherView
from atroposlib.align.vocabulary import vocabulary_of
from tests.support.real_tokenizers import byte_table, loaded
from tests.support.teacher_views import encoder_of, viewer, viewer_with

FAMILIES = ("smollm2", "qwen3", "llama3_1", "gemma3", "deepseek_v3")

ANSWERS = (
    "The 20240101st answer is 3.14159; isn't it?  Yes.\n\n\tNo more\r\n   than   that.",
    "def f(x):\n    if x > 10:\n        return {'a': [1, 2, 300]}  # done\n\n\n    return None;\n",
    "你好，世界 — Größe naïve Ωμέγα नमस्ते مرحبا 👩‍👩‍👧‍👦 🇫🇷 \u200b e\u2019s",
    "<|im_end|></s><end_of_turn><|eot_id|>\nuser\nassistant\n<think>x</think> [INST]",
)
# How the template of each family goes on behind the end of an answer.
GOES_ON = {
    "smollm2": "\n<|im_start|>user\n",
    "qwen3": "\n<|im_start|>user\n",
    "llama3_1": "<|start_header_id|>user<|end_header_id|>\n\n",
    "gemma3": "\n<start_of_turn>user\n",
    "deepseek_v3": "<｜User｜>",
}


@pytest.fixture(autouse=True, scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache of byte tables for all of these tests, and no tokenizer read twice."""
    directory = tmp_path_factory.mktemp("vocabularies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atroposlib.align.tables.cache.default_directory", lambda: directory)
        patch.setattr("atroposlib.align.views.viewer.vocabulary_of", functools.cache(vocabulary_of))
        yield


def sampled(name: str, answer: str, seed: int | None) -> list[int]:
    """The student's own ids of an answer; cut at random places when there is a seed."""
    encoder = encoder_of(name)
    cuts = [] if seed is None else sorted(np.random.default_rng(seed).integers(0, len(answer), 4).tolist())
    pieces = [answer[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(answer)])]
    return [number for piece in pieces for number in encoder.encode(piece)]


def rollout(
    name: str, turns: Sequence[tuple[str, str]], *, seed: int | None = None, **arguments: Any
) -> tuple[list[int], npt.NDArray[np.bool_], list[dict[str, Any]]]:
    """Ids of questions and sampled answers, the positions of answers and their ends, and the messages."""
    tokenizer, end = loaded(name), byte_table(name).roles["end_of_turn"]
    ids: list[int] = []
    kept: list[bool] = []
    messages: list[dict[str, Any]] = []
    for question, answer in turns:
        asked = {"role": "user", "content": question}
        prompt = tokenizer.apply_chat_template(
            [asked], tokenize=False, add_generation_prompt=True, **arguments
        )
        if ids:
            begin = GOES_ON[name].strip()
            prompt = GOES_ON[name] + prompt[prompt.index(begin) + len(begin) :].lstrip("\n")
        head = tokenizer.encode(prompt, add_special_tokens=False)
        body = [*sampled(name, answer, seed), end]
        ids += head + body
        kept += [False] * len(head) + [True] * len(body)
        messages += [asked, {"role": "assistant", "content": answer}]
    return ids, np.array(kept), messages


def check(
    student: str, teacher: str, ids: Sequence[int], kept: npt.NDArray[np.bool_], view: TeacherView
) -> float:
    """What holds of every view; returns the share of kept bytes that are in chunks."""
    ours, theirs = byte_table(student), byte_table(teacher)
    chunks = range(view.student_chunk_id.max(initial=-1) + 1)
    assert view.teacher_chunk_id.max(initial=-1) + 1 == len(chunks)
    by_chunk = [[b"", b""] for _ in chunks]
    for side, table, numbers, chunk_ids in (
        (0, ours, ids, view.student_chunk_id),
        (1, theirs, view.ids.tolist(), view.teacher_chunk_id),
    ):
        for number, chunk in zip(numbers, chunk_ids.tolist(), strict=True):
            if chunk >= 0:
                by_chunk[chunk][side] += table.bytes_of(number) or b"\0end"
    assert all(one == other != b"" for one, other in by_chunk)
    assert kept.sum() == (view.student_chunk_id >= 0).sum() + sum(view.masked.values())
    lengths = np.array([len(ours.bytes_of(number)) for number in ids])
    return float(lengths[view.student_chunk_id >= 0].sum() / lengths[kept].sum())


@pytest.mark.parametrize(("student", "teacher"), list(itertools.product(FAMILIES, FAMILIES)))
def test_answers_are_aligned_in_all_pairs_of_templates(student: str, teacher: str) -> None:
    made = viewer(student, teacher)
    for index, answer in enumerate(ANSWERS):
        ids, kept, messages = rollout(student, [("Why 2+2=4? 日本", answer)], seed=index or None)
        for said in (messages, None):
            view = made.view(ids, kept, messages=said)
            assert check(student, teacher, ids, kept, view) == 1.0, (answer, view.masked)
            assert not view.masked
            written = loaded(teacher).decode(view.ids, clean_up_tokenization_spaces=False)
            assert answer in written


@pytest.mark.parametrize(
    ("teacher", "marker"),
    [("deepseek_v3", "<｜User｜>"), ("deepseek_v3", "<｜Assistant｜>"), ("aya_expanse", "<|USER_TOKEN|>")],
)
def test_what_marks_turns_is_text_in_contents(teacher: str, marker: str) -> None:
    number = loaded(teacher).convert_tokens_to_ids(marker)
    said = f"a {marker} b"
    plain, kept, _ = rollout("smollm2", [("What?", "That.")])
    expected = viewer("smollm2", teacher).view(plain, kept).ids.tolist().count(number)
    for turn in ((said, "That."), ("What?", said)):
        ids, kept, messages = rollout("smollm2", [turn])
        for given_messages in (messages, None):
            view = viewer("smollm2", teacher).view(ids, kept, messages=given_messages)
            assert check("smollm2", teacher, ids, kept, view) == 1.0
            assert view.ids.tolist().count(number) == expected
            assert said in loaded(teacher).decode(view.ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    ("student", "teacher"),
    [(one, other) for one, other in itertools.product(FAMILIES, FAMILIES) if one != other][::3],
)
def test_every_answer_of_a_conversation_is_aligned(student: str, teacher: str) -> None:
    turns = list(zip(["One?", "a", "Two 2?"], ["a", *ANSWERS[:2]], strict=True))
    ids, kept, messages = rollout(student, turns)
    for said in (messages, None):
        view = viewer(student, teacher).view(ids, kept, messages=said)
        assert check(student, teacher, ids, kept, view) == 1.0
        assert not view.masked


@pytest.mark.parametrize(
    ("student", "teacher"), [("smollm2", "qwen3"), ("qwen3", "gemma3"), ("gemma3", "llama3_1")]
)
def test_an_answer_can_be_cut_off_anywhere(student: str, teacher: str) -> None:
    made = viewer(student, teacher)
    ids, kept, _ = rollout(student, [("Why?", ANSWERS[2])])
    first = int(np.flatnonzero(kept)[0])
    for length in range(first + 1, len(ids)):
        view = made.view(ids[:length], kept[:length])
        check(student, teacher, ids[:length], kept[:length], view)
        text = b"".join(byte_table(student).bytes_of(number) for number in ids[first:length])
        whole = text.decode(errors="ignore")
        assert loaded(teacher).decode(view.ids, clean_up_tokenization_spaces=False).endswith(whole)
        assert set(view.masked) <= {"cut_end", "cut_character"}
        assert ("cut_character" in view.masked) == (whole.encode() != text)


@pytest.mark.parametrize(("student", "teacher"), [("qwen3", "llama3_1"), ("llama3_1", "deepseek_v3")])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    answers=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_nothing_is_masked_whatever_the_answer_where_no_tokenizer_loses_text(
    student: str, teacher: str, answers: list[str], seed: int
) -> None:
    ids, kept, messages = rollout(student, [("Why?", answer) for answer in answers], seed=seed)
    for said in (messages, None):
        view = viewer(student, teacher).view(ids, kept, messages=said)
        assert check(student, teacher, ids, kept, view) == 1.0
        assert not view.masked


@pytest.mark.parametrize("thinking", [True, False])
def test_the_teacher_is_asked_as_its_template_asks(thinking: bool) -> None:
    ids, kept, _ = rollout("smollm2", [("One?", "1"), ("Two?", "2")])
    view = viewer_with("smollm2", "qwen3", template_arguments={"enable_thinking": thinking}).view(ids, kept)
    assert check("smollm2", "qwen3", ids, kept, view) == 1.0
    asked = "<|im_start|>assistant\n" + "<think>\n\n</think>\n\n" * (not thinking)
    assert (
        loaded("qwen3")
        .decode(view.ids)
        .endswith(
            f"<|im_start|>user\nOne?<|im_end|>\n{asked}1<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n{asked}2<|im_end|>"
        )
    )


@pytest.mark.parametrize("teacher", ["smollm2", "llama3_1", "gemma3", "deepseek_v3", "qwen3"])
def test_reasoning_is_part_of_the_answer(teacher: str) -> None:
    answers = ("<think>\nIt is one.\n</think>\n\nOne", "<think>\nIt is two.\n</think>\n\nTwo")
    ids, kept, messages = rollout("qwen3", [("1?", answers[0]), ("2?", answers[1])])
    for said in (messages, None):
        view = viewer("qwen3", teacher).view(ids, kept, messages=said)
        assert check("qwen3", teacher, ids, kept, view) == 1.0
        assert not view.masked
        text = loaded(teacher).decode(view.ids, clean_up_tokenization_spaces=False)
        assert all(text.count(answer) == 1 for answer in answers)


def test_a_student_that_was_told_not_to_think() -> None:
    ids, kept, messages = rollout("qwen3", [("1?", "One")], enable_thinking=False)
    for said in (messages, None):
        view = viewer("qwen3", "llama3_1").view(ids, kept, messages=said)
        assert check("qwen3", "llama3_1", ids, kept, view) == 1.0
        assert "think" not in loaded("llama3_1").decode(view.ids)


def test_tools_are_described_in_the_teachers_way() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    ids, kept, _ = rollout("smollm2", [("Add.", call)])
    messages = [
        {"role": "user", "content": "Add."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
        },
    ]
    view = viewer("smollm2", "qwen3").view(ids, kept, messages=messages, tools=[tool])
    assert check("smollm2", "qwen3", ids, kept, view) == 1.0
    text = loaded("qwen3").decode(view.ids)
    assert "You are provided with function signatures" in text
    assert text.endswith(f"<|im_start|>assistant\n{call}<|im_end|>")


@pytest.mark.parametrize("teacher", ["gptoss", "llama3_1", "gemma3"])
def test_a_base_model_reads_plain_text(teacher: str) -> None:
    for answer in ANSWERS:
        ids, kept, messages = rollout("smollm2", [("Why?", answer)])
        view = viewer_with("smollm2", teacher, chat_template=None).view(ids, kept, messages=messages)
        assert check("smollm2", teacher, ids, kept, view) >= 0.95
        assert set(view.masked) <= {"lone_marker", "border"}
        text = loaded(teacher).decode(view.ids, clean_up_tokenization_spaces=False)
        assert f"Why?\n\n{answer}" in text


@pytest.mark.parametrize(
    ("student", "teacher"), [("gptoss", "llama3_1"), ("gptoss", "qwen3"), ("gptoss", "gemma3")]
)
def test_text_without_turns_is_plain_text(student: str, teacher: str) -> None:
    text = "\n".join(ANSWERS)
    ids = encoder_of(student).encode(text)
    kept = np.ones(len(ids), dtype=np.bool_)
    view = viewer(student, teacher).view(ids, kept)
    share = check(student, teacher, ids, kept, view)
    assert set(view.masked) == {"cut_end"}
    assert share >= 0.99
    table = byte_table(teacher)
    bos = table.roles["bos"] if teacher != "qwen3" else None
    assert view.ids.tolist() == [bos] * (bos is not None) + encoder_of(teacher).encode(text)


def test_text_that_the_teacher_normalises_is_masked_alone() -> None:
    answer = "Plain text, then e\u0301 and a\u0308, and plain text again."
    ids, kept, _ = rollout("llama3_1", [("Why?", answer)])
    view = viewer("llama3_1", "qwen3").view(ids, kept)
    share = check("llama3_1", "qwen3", ids, kept, view)
    assert set(view.masked) == {"not_equal"}
    assert 0.6 < share < 1.0

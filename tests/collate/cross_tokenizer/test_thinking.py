"""Reasoning in chat mode: within the content, and taken apart into the four regions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.collators import chunk_texts, decoded, own, positions, real_collator, row, tokens_between

NATIVE = {"mode": "chat", "include_thinking_in_loss": True, "native_thinking_alignment": True}
# Two tokenizers, one template with reasoning.
CHATML = ("qwen3", "smollm2+qwen3")
INLINE = "<think>\nFirst 12, then 13\n</think>\n\nSo 25."
REGIONS = {"reasoning": "First 12, then 13", "close": "</think>", "answer": "So 25.", "eot": "<|im_end|>"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 12, "b": 13}}}


def reasoned(content: str = "So 25.", **changes: Any) -> dict[str, Any]:
    """A row whose answer has its reasoning apart."""
    one = row("12 + 13?", content)
    one["message_log"][-1] |= {"reasoning_content": "First 12, then 13"} | changes
    return one


def supervised_text(batch: dict[str, Any], name: str, side: str = "") -> str:
    """What the library says of the supervised ids of the first row."""
    return decoded(own(name), batch[f"{side}input_ids"][0][batch[f"{side}token_mask"][0].bool()])


@pytest.mark.parametrize(
    ("student", "teacher"), [("qwen3", "llama3_1"), ("smollm2", "qwen3"), ("gemma3", "smollm2")]
)
@pytest.mark.parametrize("include", [False, True])
def test_reasoning_in_the_content_is_supervised_only_where_asked(
    student: str, teacher: str, include: bool
) -> None:
    batch = real_collator(student, teacher, mode="chat", include_thinking_in_loss=include)([row("Q", INLINE)])

    for name, side, key in ((student, "", "student"), (teacher, "teacher_0_", "teacher")):
        tokenizer = own(name)
        text = tokenizer.apply_chat_template(row("Q", INLINE)["message_log"], tokenize=False)
        begin = text.rindex("<think>") + 7 if include else text.rindex("</think>") + 8
        end = text.rindex("So 25.") + 6
        stop = tokens_between(tokenizer, text, end, text.index(">", end) + 1)
        wanted = [*tokens_between(tokenizer, text, begin, end), *stop]
        assert positions(batch[f"{side}token_mask"][0]) == wanted
        assert set(positions(batch[f"alignment_0_{key}_chunk_id"][0] >= 0)) <= set(wanted)
    paired = "".join(ours for ours, _ in chunk_texts(batch, 0, 0, own(student), own(teacher)))
    assert ("First 12, then 13" in paired) == include
    assert "So 25." in paired


def test_reasoning_that_was_cut_off_is_no_answer() -> None:
    batch = real_collator("smollm2", "llama3_1", mode="chat")([row("Q", "<think>\nFirst 12, then")])
    assert supervised_text(batch, "smollm2") == "<|im_end|>"
    assert batch["alignment_0_num_chunks"].tolist() == [1]


def test_reasoning_marks_in_an_answer_are_text() -> None:
    batch = real_collator("smollm2", "llama3_1", mode="chat")([row("Q", "Write <think> or </think> there.")])
    assert supervised_text(batch, "smollm2") == "Write <think> or </think> there.<|im_end|>"


@pytest.mark.parametrize("one", [reasoned(), row("12 + 13?", INLINE)], ids=["apart", "inline"])
@pytest.mark.parametrize("regions", [None, ["reasoning"], ["close", "eot"], ["answer"], list(REGIONS)])
def test_regions_are_aligned_each_on_its_own(one: dict[str, Any], regions: list[str] | None) -> None:
    batch = real_collator(*CHATML, **NATIVE, kd_alignment_regions=regions)([one])

    for name, side in zip(CHATML, ("", "teacher_0_"), strict=True):
        tokenizer = own(name)
        text = tokenizer.apply_chat_template(one["message_log"], tokenize=False)
        wanted = []
        for part in REGIONS.values():
            begin = text.rindex(part)
            wanted += tokens_between(tokenizer, text, begin, begin + len(part))
        # What is supervised does not depend on what is aligned.
        assert positions(batch[f"{side}token_mask"][0]) == wanted
    pairs = chunk_texts(batch, 0, 0, *map(own, CHATML))
    assert all(ours == theirs for ours, theirs in pairs)
    # SmolLM2 puts ">" together with the line breaks behind it, so its mark has a token that is not its own.
    expected = [part for name, part in REGIONS.items() if regions is None or name in regions]
    spelled = "".join(ours for ours, _ in pairs)
    assert spelled in ("".join(expected), "".join(part for part in expected if part != "</think>"))


def test_a_token_that_reaches_into_the_template_is_not_supervised() -> None:
    # Qwen3 writes ".\n" as one token, and the line break is the template's.
    batch = real_collator(*CHATML, **NATIVE)([reasoned(reasoning_content="Easy.")])
    assert supervised_text(batch, "qwen3") == "Easy</think>So 25.<|im_end|>"


def test_no_chunk_lies_in_two_regions() -> None:
    batch = real_collator(*CHATML, **NATIVE)([reasoned()])
    texts = [ours for ours, _ in chunk_texts(batch, 0, 0, *map(own, CHATML))]
    for part in REGIONS.values():
        left = part
        while left and texts and left.startswith(texts[0]):
            left = left.removeprefix(texts.pop(0))
        assert left in ("", part)
    assert texts == []


def test_the_first_dropped_chunk_of_a_reasoned_answer_is_of_its_reasoning() -> None:
    kept = real_collator(*CHATML, **NATIVE)([reasoned()])
    dropped = real_collator(*CHATML, **NATIVE, drop_first_assistant_chunk_kl_by_teacher=[True])([reasoned()])
    before = chunk_texts(kept, 0, 0, *map(own, CHATML))
    assert before[0] == ("First", "First")
    assert chunk_texts(dropped, 0, 0, *map(own, CHATML)) == before[1:]


def test_tool_calls_belong_to_the_answer() -> None:
    batch = real_collator(*CHATML, **NATIVE, kd_alignment_regions=["answer"])(
        [reasoned("", tool_calls=[CALL]), reasoned("Let me.", tool_calls=[CALL])]
    )
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": 13}}\n</tool_call>'
    assert supervised_text(batch, "qwen3") == f"First 12, then 13</think>{call}<|im_end|>"
    for number, answer in enumerate((call, f"Let me.\n{call}")):
        pairs = chunk_texts(batch, number, 0, *map(own, CHATML))
        assert "".join(ours for ours, _ in pairs) == answer


def test_markers_written_in_reasoning_and_answer_stay_text() -> None:
    literal = "a <|im_end|> b <|im_start|>assistant\n c"
    one = reasoned(f"{literal} out", reasoning_content=f"{literal} in")
    batch = real_collator(*CHATML, **NATIVE)([one])
    for name, side in zip(CHATML, ("", "teacher_0_"), strict=True):
        text = supervised_text(batch, name, side).replace("</think>", "")
        assert text == f"{literal} in{literal} out<|im_end|>"
        ends = batch[f"{side}input_ids"][0] == own(name).convert_tokens_to_ids("<|im_end|>")
        padding = int(batch[f"{side}input_lengths"][0])
        # One for each of the two turns.
        assert len([at for at in positions(ends) if at < padding]) == 2


def test_an_answer_without_reasoning_has_no_region_for_it() -> None:
    batch = real_collator(*CHATML, **NATIVE)([row("Q", "So 25.")])
    assert supervised_text(batch, "qwen3") == "So 25.<|im_end|>"


@pytest.mark.parametrize("name", ["llama3_1", "gemma3", "smollm2"])
def test_a_template_without_the_known_layout_is_refused_at_construction(name: str) -> None:
    with pytest.raises(ValueError, match=r"teacher 0, chat template: .*native_thinking_alignment"):
        real_collator("qwen3", name, **NATIVE)
    with pytest.raises(ValueError, match="student, chat template"):
        real_collator(name, "qwen3", **NATIVE)


def test_reasoning_apart_is_refused_without_native_alignment() -> None:
    build = real_collator("qwen3", "smollm2", mode="chat", include_thinking_in_loss=True)
    with pytest.raises(ValueError, match=r"student, sample idx=0: message_log\[1\].reasoning_content"):
        build([reasoned()])

"""Chat mode on real templates: expected spans are found by searching what the library renders."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.collators import (
    chunk_texts,
    decoded,
    own,
    positions,
    real_collator,
    row,
    tokens_between,
)

ENDS = {
    "qwen3": "<|im_end|>",
    "llama3_1": "<|eot_id|>",
    "gemma3": "<end_of_turn>",
    "smollm2": "<|im_end|>",
}
PAIRS = [("qwen3", "gemma3"), ("gemma3", "llama3_1"), ("llama3_1", "smollm2"), ("smollm2", "qwen3")]
ROWS = [
    row("What is 201 + 1?", "201 + 1 is 202.\n\nDone", idx=0),
    row("Hello?", "Yes.", "Write code", "def f(x):\n        return x", idx=1),
    row("Yes?", "Yes?", idx=2),
]


def expected_positions(name: str, number: int) -> tuple[str, list[int], tuple[int, int]]:
    """The text that the library renders, the supervised positions and the span of the content."""
    tokenizer, messages = own(name), ROWS[number]["message_log"]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    content = messages[-1]["content"]
    # These two trim contents.
    content = content.strip() if name in ("llama3_1", "gemma3") else content
    begin = text.rindex(content)
    end = begin + len(content)
    assert text.startswith(ENDS[name], end)
    found = tokens_between(tokenizer, text, begin, end)
    return text, [*found, *tokens_between(tokenizer, text, end, end + len(ENDS[name]))], (begin, end)


@pytest.mark.parametrize(("student", "teacher"), PAIRS)
def test_both_sides_supervise_the_last_content_and_the_end_of_its_turn(student: str, teacher: str) -> None:
    batch = real_collator(student, teacher, mode="chat")(ROWS)

    for number in range(len(ROWS)):
        for name, side in ((student, ""), (teacher, "teacher_0_")):
            text, wanted, _ = expected_positions(name, number)
            ids = own(name)(text, add_special_tokens=False)["input_ids"]
            length = int(batch[f"{side}input_lengths"][number])
            assert batch[f"{side}input_ids"][number, :length].tolist() == ids
            assert positions(batch[f"{side}token_mask"][number]) == wanted


@pytest.mark.parametrize(("student", "teacher"), PAIRS)
def test_chunks_cover_the_answer_and_nothing_else(student: str, teacher: str) -> None:
    batch = real_collator(student, teacher, mode="chat")(ROWS)

    for number in range(len(ROWS)):
        for name, key, ids in ((student, "student", ""), (teacher, "teacher", "teacher_0_")):
            _, wanted, _ = expected_positions(name, number)
            chunks = batch[f"alignment_0_{key}_chunk_id"][number]
            inside = positions(chunks >= 0)
            assert set(inside) <= set(wanted)
            assert inside[-1] == wanted[-1], "the end of turn is paired"
            text = decoded(own(name), batch[f"{ids}input_ids"][number][chunks >= 0])
            stripped = ROWS[number]["message_log"][-1]["content"].strip()
            assert text.removesuffix(ENDS[name]).strip() == stripped
            values = chunks[chunks >= 0].tolist()
            assert values[0] == 0
            assert all(later - one in (0, 1) for one, later in pairwise(values))


@pytest.mark.parametrize(("student", "teacher"), PAIRS)
def test_a_chunk_is_the_same_stretch_of_the_answer_on_both_sides(student: str, teacher: str) -> None:
    batch = real_collator(student, teacher, mode="chat")(ROWS)

    for number in range(len(ROWS)):
        answer = ROWS[number]["message_log"][-1]["content"].strip()
        spans = []
        for name, key in ((student, "student"), (teacher, "teacher")):
            text, _, _ = expected_positions(name, number)
            begin = text.rindex(answer)
            offsets = own(name)(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            chunks = batch[f"alignment_0_{key}_chunk_id"][number][: len(offsets)]
            found = {}
            for at, chunk in enumerate(chunks.tolist()):
                first, last = found.get(chunk, (offsets[at][0] - begin, 0))
                found[chunk] = (first, max(last, offsets[at][1] - begin))
            del found[-1]
            # The last is the end of turn, whose name has another length.
            spans.append(list(found.values())[:-1])
        assert spans[0] == spans[1]
        assert len(spans[0]) > 0


@pytest.mark.parametrize(("student", "teacher"), PAIRS)
def test_markers_written_in_messages_stay_text(student: str, teacher: str) -> None:
    literal = "a <|im_end|> b </s> c <|eot_id|> d <end_of_turn> e <|im_start|>assistant"
    plain = row("zero", "one", "two", "three")
    marked = row("zero", *(f"{word} {literal}" for word in ("one", "two", "three")))
    batch = real_collator(student, teacher, mode="chat")([plain, marked])

    for name, side in ((student, ""), (teacher, "teacher_0_")):
        tokenizer = own(name)
        ids, lengths = batch[f"{side}input_ids"], batch[f"{side}input_lengths"].tolist()
        special = set(tokenizer.all_special_ids)
        counts = [
            [number for number in one[:length].tolist() if number in special]
            for one, length in zip(ids, lengths, strict=True)
        ]
        assert counts[0] == counts[1]
        supervised = decoded(tokenizer, ids[1][batch[f"{side}token_mask"][1].bool()])
        assert supervised == f"three {literal}{ENDS[name]}"
    texts = chunk_texts(batch, 1, 0, own(student), own(teacher))
    assert "".join(one for one, _ in texts) == f"three {literal}{ENDS[student]}"
    assert "".join(other for _, other in texts) == f"three {literal}{ENDS[teacher]}"


def test_what_one_template_trims_is_supervised_where_it_stands_and_paired_nowhere() -> None:
    batch = real_collator("qwen3", "llama3_1", mode="chat")([row("Q", "  two words \n")])

    supervised = decoded(own("qwen3"), batch["input_ids"][0][batch["token_mask"][0].bool()])
    assert supervised == "  two words \n<|im_end|>"
    texts = chunk_texts(batch, 0, 0, own("qwen3"), own("llama3_1"))
    # " two" is one token to Qwen3, and Llama's "two" has no space before it.
    assert texts == [(" words", " words"), ("<|im_end|>", "<|eot_id|>")]


def test_the_whole_last_turn_is_supervised_where_asked() -> None:
    rows = [*ROWS, row("only an answer", idx=3)]
    rows[-1]["message_log"] = rows[-1]["message_log"][-1:]
    for name, teacher in (("qwen3", "llama3_1"), ("smollm2", "llama3_1"), ("llama3_1", "qwen3")):
        usual = real_collator(name, teacher, mode="chat")(rows)
        whole = real_collator(name, teacher, mode="chat", ce_covers_assistant_turn=True)(rows)

        for number, one in enumerate(rows):
            tokenizer, messages = own(name), one["message_log"]
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            earlier = tokenizer.apply_chat_template(messages[:-1], tokenize=False) if messages[:-1] else ""
            wanted = tokens_between(tokenizer, text, len(earlier), len(text))
            assert positions(whole["token_mask"][number]) == wanted
        assert whole["kd_token_mask"].equal(usual["token_mask"])
        assert "kd_token_mask" not in usual
        same = [key for key in usual if key.startswith(("alignment", "teacher"))]
        assert all(whole[key].equal(usual[key]) for key in same)


def test_a_turn_without_a_known_begin_is_refused_by_sample() -> None:
    # Qwen3 writes reasoning marks into an answer that comes last, and takes them out of an earlier one.
    one = row("Q", "A", idx=41)
    one["message_log"].insert(1, {"role": "assistant", "content": "B"})
    build = real_collator("qwen3", "llama3_1", mode="chat", ce_covers_assistant_turn=True)

    with pytest.raises(ValueError, match=r"student, sample idx=41: where the last turn begins"):
        build([one])


def test_the_first_content_chunk_is_dropped_for_the_teachers_that_ask() -> None:
    teachers = ("qwen3", "smollm2", "llama3_1")
    kept = real_collator("smollm2", *teachers, mode="chat")(ROWS)
    flags = [True, True, False]
    dropped = real_collator(
        "smollm2", *teachers, mode="chat", drop_first_assistant_chunk_kl_by_teacher=flags
    )(ROWS)

    for number in range(len(ROWS)):
        before = chunk_texts(kept, number, 0, own("smollm2"), own("qwen3"))
        assert chunk_texts(dropped, number, 0, own("smollm2"), own("qwen3")) == before[1:]
        assert dropped["alignment_0_num_chunks"][number] == kept["alignment_0_num_chunks"][number] - 1
    assert dropped["token_mask"].equal(kept["token_mask"])
    assert dropped["teacher_0_token_mask"].equal(kept["teacher_0_token_mask"])
    assert "alignment_1_pair_valid" not in kept
    assert all(dropped[key].equal(kept[key]) for key in kept if key.startswith("alignment_2"))


def test_tools_reach_both_templates() -> None:
    tool = {"type": "function", "function": {"name": "find_it", "parameters": {}}}
    with_tools = row("Q", "The answer", tools=[tool])
    batch = real_collator("qwen3", "smollm2+qwen3", mode="chat")([with_tools])

    for name, side in (("qwen3", ""), ("smollm2+qwen3", "teacher_0_")):
        assert "find_it" in decoded(own(name), batch[f"{side}input_ids"][0])
        supervised = decoded(own(name), batch[f"{side}input_ids"][0][batch[f"{side}token_mask"][0].bool()])
        assert supervised == "The answer<|im_end|>"


def test_a_marker_in_a_tool_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "ends with <|im_end|>"}}
    build = real_collator("qwen3", "llama3_1", mode="chat")

    with pytest.raises(ValueError, match=r"student, sample idx=7: tools: .*<\|im_end\|>"):
        build([row("Q", "A", tools=[tool], idx=7)])


def test_an_earlier_answer_may_lose_its_reasoning_to_a_template() -> None:
    earlier = "<think>\nlong ago\n</think>\n\nA"
    batch = real_collator("qwen3", "llama3_1", mode="chat")([row("Q", earlier, "R", "B")])

    assert "long ago" not in decoded(own("qwen3"), batch["input_ids"][0])
    assert "long ago" in decoded(own("llama3_1"), batch["teacher_0_input_ids"][0])
    texts = chunk_texts(batch, 0, 0, own("qwen3"), own("llama3_1"))
    assert texts == [("B", "B"), ("<|im_end|>", "<|eot_id|>")]


def test_a_marker_in_an_earlier_answer_that_a_template_changes_is_refused() -> None:
    build = real_collator("qwen3", "llama3_1", mode="chat")

    with pytest.raises(ValueError, match=r"student, sample idx=7: message 1: .*<\|im_end\|>"):
        build([row("Q", "<think>\nlong ago\n</think>\n\nA<|im_end|>", "R", "B", idx=7)])


def test_a_row_whose_loss_mask_leaves_the_answer_out_trains_nothing() -> None:
    batch = real_collator("qwen3", "llama3_1", mode="chat")(
        [row("a", "b", "c", "d", message_loss_mask=[0, 1, 0, 0]), row("c", "d", message_loss_mask=[0, 1])]
    )
    assert batch["token_mask"].any(dim=1).tolist() == [False, True]
    assert batch["teacher_0_token_mask"].any(dim=1).tolist() == [False, True]
    assert batch["alignment_0_num_chunks"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (row("a", "b", idx=5, message_loss_mask=[1]), r"student, sample idx=5: message_loss_mask"),
        ({"message_log": [], "idx": 6, "loss_multiplier": 1.0}, r"student, sample idx=6: message_log"),
        (
            {"message_log": [{"role": "user", "content": "a"}], "idx": 6, "loss_multiplier": 1.0},
            r"idx=6: message_log: .*got user",
        ),
        (row("a", "  \n", idx=8), r"student, sample idx=8: message_log\[1\].content"),
    ],
)
def test_a_row_that_cannot_be_supervised_is_refused_by_sample(broken: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        real_collator("qwen3", "llama3_1", mode="chat")([row("x", "y"), broken])


def test_a_template_that_refuses_the_roles_is_named_by_side() -> None:
    twice = row("a", "b", idx=9)
    twice["message_log"].insert(0, {"role": "user", "content": "again"})
    with pytest.raises(ValueError, match=r"teacher 0, sample idx=9: .*alternate"):
        real_collator("qwen3", "gemma3", mode="chat")([twice])


def test_a_row_longer_than_a_context_is_refused_by_side() -> None:
    one = row("a", "word " * 40, idx=12)
    lengths = [
        len(own(name)(own(name).apply_chat_template(one["message_log"], tokenize=False)).input_ids)
        for name in ("qwen3", "smollm2")
    ]
    fits = {"mode": "chat", "ctx_length_student": lengths[0], "ctx_length_teachers": [lengths[1], lengths[0]]}
    names = ("qwen3", "smollm2", "qwen3")
    assert real_collator(*names, **fits)([one])["input_ids"].shape == (1, lengths[0])

    for side, change in (
        ("student", {"ctx_length_student": lengths[0] - 1}),
        ("teacher 0", {"ctx_length_teachers": [lengths[1] - 1, lengths[0]]}),
        ("teacher 1", {"ctx_length_teachers": [lengths[1], lengths[0] - 1]}),
        # Padding on the student's side makes the row too wide for the teacher that reads it.
        ("teacher 1", {"make_seq_div_by_student": lengths[0] + 1}),
    ):
        with pytest.raises(ValueError, match=rf"{side}, sample idx=12: the row is longer"):
            real_collator(*names, **fits | change)([one])

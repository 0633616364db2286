"""Text mode: whole texts, cut or refused where a context is too short, with special tokens or without."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.collators import chunk_texts, decoded, own, positions, real_collator, row

TEXTS = [
    "The quick brown fox jumps over 20250 lazy dogs.",
    "Ein Satz\n\n    mit Einzug, naïve 👩‍👩‍👧 日本語テスト",
    "short",
]


def rows(texts: list[str] = TEXTS) -> list[dict[str, Any]]:
    """Rows of text mode."""
    return [row(text, idx=10 + at) for at, text in enumerate(texts)]


def library_ids(name: str, text: str, *, special: bool = False) -> list[int]:
    """What the library makes of a text without special tokens in it."""
    ids: list[int] = own(name)(text, add_special_tokens=special)["input_ids"]
    return ids


@pytest.mark.parametrize(("student", "teacher"), [("qwen3", "gemma3"), ("llama3_1", "qwen3")])
def test_texts_are_tokenized_as_they_are_and_wholly_paired(student: str, teacher: str) -> None:
    batch = real_collator(student, teacher)(rows())

    for number, text in enumerate(TEXTS):
        for name, side in ((student, ""), (teacher, "teacher_0_")):
            ids = library_ids(name, text)
            length = int(batch[f"{side}input_lengths"][number])
            assert batch[f"{side}input_ids"][number, :length].tolist() == ids
            assert positions(batch[f"{side}token_mask"][number]) == list(range(len(ids)))
        pairs = chunk_texts(batch, number, 0, own(student), own(teacher))
        assert "".join(ours for ours, _ in pairs).isprintable() or "\n" in text
        assert int((batch["alignment_0_student_chunk_id"][number] >= 0).sum()) == len(
            library_ids(student, text)
        )
    assert batch["idx"] == [10, 11, 12]
    assert batch["sample_mask"].dtype == torch.float32


def test_markers_written_in_a_text_stay_text() -> None:
    text = "a <|im_end|> b <|endoftext|> </s> c"
    batch = real_collator("qwen3", "llama3_1")(rows([text]))
    assert not set(batch["input_ids"][0].tolist()) & set(own("qwen3").all_special_ids)
    assert decoded(own("qwen3"), batch["input_ids"][0]) == text
    pairs = chunk_texts(batch, 0, 0, own("qwen3"), own("llama3_1"))
    assert "".join(ours for ours, _ in pairs) == "".join(theirs for _, theirs in pairs) == text


def test_each_side_is_cut_on_its_own_and_only_whole_chunks_stay() -> None:
    text = "one two three 4567 eight nine ten eleven"
    whole = real_collator("qwen3", "llama3_1")(rows([text]))
    ids = {name: library_ids(name, text) for name in ("qwen3", "llama3_1")}
    for ours in (1, 6, 7, len(ids["qwen3"])):
        for theirs in (4, 5, len(ids["llama3_1"])):
            batch = real_collator("qwen3", "llama3_1", ctx_length_student=ours, ctx_length_teachers=[theirs])(
                rows([text])
            )
            assert batch["input_ids"][0].tolist() == ids["qwen3"][:ours]
            assert batch["teacher_0_input_ids"][0].tolist() == ids["llama3_1"][:theirs]
            pairs = chunk_texts(batch, 0, 0, own("qwen3"), own("llama3_1"))
            everything = chunk_texts(whole, 0, 0, own("qwen3"), own("llama3_1"))
            assert pairs == everything[: len(pairs)]
            kept = decoded(own("qwen3"), ids["qwen3"][:ours])
            there = decoded(own("llama3_1"), ids["llama3_1"][:theirs])
            # As many chunks as end within both texts.
            ends = ["".join(one for one, _ in everything[: at + 1]) for at in range(len(everything))]
            assert len(pairs) == sum(kept.startswith(end) and there.startswith(end) for end in ends)
            assert int(batch["alignment_0_num_chunks"][0]) == len(pairs)


def test_the_same_words_behind_a_cut_are_not_paired() -> None:
    # Qwen3 composes the first letter, so the begin of both texts is not the same.
    begin, phrase = "e\u0301", " some words that come again."
    text = f"{begin}{phrase} Then others.{phrase}"
    cut = len(library_ids("llama3_1", begin + phrase))
    batch = real_collator("llama3_1", "qwen3", ctx_length_student=cut)(rows([text]))
    paired = positions(batch["alignment_0_teacher_chunk_id"][0] >= 0)
    first = len(library_ids("qwen3", begin + phrase))
    assert len(paired) > 3
    assert max(paired) < first


@pytest.mark.parametrize(
    ("change", "side"),
    [
        ({"ctx_length_student": 0}, "student"),
        ({"ctx_length_teachers": [0, 99]}, "teacher 0"),
        ({"ctx_length_teachers": [99, 0]}, "teacher 1"),
        ({"make_seq_div_by_student": 64, "ctx_length_student": 63}, "student"),
        ({"make_seq_div_by_teachers": [64, 1], "ctx_length_teachers": [63, 63]}, "teacher 0"),
        # The student's rows, padded for the student, are what this teacher reads; its own divisor counts too.
        (
            {"make_seq_div_by_student": 64, "ctx_length_student": 99, "ctx_length_teachers": [99, 63]},
            "teacher 1",
        ),
        ({"make_seq_div_by_teachers": [1, 64], "ctx_length_teachers": [99, 63]}, "teacher 1"),
    ],
)
def test_a_row_that_needs_more_than_a_context_is_refused_where_asked(
    change: dict[str, Any], side: str
) -> None:
    ours, theirs = (len(library_ids(name, TEXTS[0])) for name in ("qwen3", "llama3_1"))
    exact = {"ctx_length_student": ours, "ctx_length_teachers": [theirs, ours]}
    names = ("qwen3", "llama3_1", "qwen3")
    batch = real_collator(*names, reject_overlength_text=True, **exact)(rows(["x", TEXTS[0]]))
    assert batch["input_lengths"].tolist() == [1, ours]

    # 0 stands for one token less than the row has, 99 for enough.
    short = {"student": ours, "teacher 0": theirs, "teacher 1": ours}[side] - 1
    filled = {
        name: [item or short for item in value] if isinstance(value, list) else value or short
        for name, value in change.items()
    }
    build = real_collator(*names, reject_overlength_text=True, **exact | filled)
    with pytest.raises(ValueError, match=rf"{side}, sample idx=10: the row is longer"):
        build(rows([TEXTS[0], "x"]))


def test_special_tokens_pair_by_role_and_count_as_length() -> None:
    text = "one two"
    for teacher, begin in (("gemma3", "<bos>"), ("qwen3", "")):
        batch = real_collator("llama3_1", teacher, add_special_tokens_in_text=True)(rows([text]))
        assert batch["input_ids"][0].tolist() == library_ids("llama3_1", text, special=True)
        assert decoded(own("llama3_1"), batch["input_ids"][0]) == f"<|begin_of_text|>{text}"
        pairs = chunk_texts(batch, 0, 0, own("llama3_1"), own(teacher))
        assert pairs[0] == (("<|begin_of_text|>", begin) if begin else ("one", "one"))
        # A marker that the teacher lacks is a pair of its own, without a teacher's token.
        assert batch["alignment_0_student_chunk_id"][0].tolist() == [0, 1, 2]
        assert batch["alignment_0_pair_valid"][0].tolist() == [bool(begin), True, True]

    enough = {"reject_overlength_text": True, "ctx_length_student": 2}
    real_collator("llama3_1", "qwen3", **enough)(rows([text]))
    with pytest.raises(ValueError, match="student, sample idx=10"):
        real_collator("llama3_1", "qwen3", add_special_tokens_in_text=True, **enough)(rows([text]))


def test_a_content_that_is_no_text_is_refused() -> None:
    broken = {
        "message_log": [{"role": "user", "content": [{"type": "text"}]}],
        "idx": 4,
        "loss_multiplier": 1,
    }
    with pytest.raises(ValueError, match=r"sample idx=4: message_log\[0\].content"):
        real_collator("qwen3", "llama3_1")([broken])


def test_a_row_without_a_token_has_no_chunk() -> None:
    batch = real_collator("qwen3", "llama3_1")(rows(["", "one"]))
    assert batch["input_lengths"].tolist() == [0, 1]
    assert batch["alignment_0_num_chunks"].tolist() == [0, 1]
    assert real_collator("qwen3", "llama3_1")(rows([""]))["alignment_0_pair_valid"].tolist() == [[False]]

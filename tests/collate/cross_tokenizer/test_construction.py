"""What a collator refuses before it sees a row."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from atroposlib.align.aligner import TokenAligner
from atroposlib.collate.cross_tokenizer import CrossTokenizerCollatorConfig
from tests.support.collators import collator, real_collator, without_padding_token

Small = tuple[Any, Any]


def built(small: Small, **changes: Any) -> Any:
    """A collator of two small tokenizers and a second teacher with the student's own."""
    return collator(small[0], [small[1], None], [TokenAligner(*small), None], **changes)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"mode": "pretrain"}, "mode"),
        ({"pack": 1}, "pack"),
        ({"native_thinking_alignment": True}, "native_thinking_alignment"),
        ({"mode": "chat", "native_thinking_alignment": True}, "native_thinking_alignment"),
        ({"mode": "chat", "kd_alignment_regions": ["answer"]}, "kd_alignment_regions"),
        ({"num_packed_rows": 0}, "num_packed_rows"),
        ({"num_packed_rows": 2}, "num_packed_rows"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        CrossTokenizerCollatorConfig(**settings)


@pytest.mark.parametrize("regions", [[], ["answer", "prose"]])
def test_regions_must_be_some_of_the_known(regions: list[str]) -> None:
    with pytest.raises(ValueError, match="kd_alignment_regions"):
        CrossTokenizerCollatorConfig(
            mode="chat",
            include_thinking_in_loss=True,
            native_thinking_alignment=True,
            kd_alignment_regions=regions,
        )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ctx_length_teachers": [512]}, "ctx_length_teachers"),
        (
            {"drop_first_assistant_chunk_kl_by_teacher": [True] * 3},
            "drop_first_assistant_chunk_kl_by_teacher",
        ),
        ({"make_seq_div_by_teachers": [1]}, "make_seq_div_by_teachers"),
        ({"make_seq_div_by_teachers": [1, 0]}, "make_seq_div_by_teachers"),
        ({"make_seq_div_by_student": 0}, "make_seq_div_by_student"),
        ({"ctx_length_student": 0}, "ctx_length_student"),
        ({"ctx_length_teachers": [512, -1]}, "ctx_length_teachers"),
        ({"ce_covers_assistant_turn": True}, "ce_covers_assistant_turn"),
        ({"mode": "chat", "add_special_tokens_in_text": True}, "add_special_tokens_in_text"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(small: Small, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        built(small, **changes)


def test_the_whole_turn_cannot_be_supervised_with_native_alignment() -> None:
    native = {"mode": "chat", "include_thinking_in_loss": True, "native_thinking_alignment": True}
    with pytest.raises(ValueError, match="ce_covers_assistant_turn"):
        real_collator("qwen3", "smollm2+qwen3", ce_covers_assistant_turn=True, **native)


def test_lists_of_teachers_must_be_equally_long(small: Small) -> None:
    with pytest.raises(ValueError, match="teacher_tokenizers"):
        collator(small[0], [small[1]], [TokenAligner(*small), None])


@pytest.mark.parametrize("mode", ["text", "chat"])
def test_slow_and_missing_tokenizers_are_refused(small: Small, mode: str) -> None:
    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="student: the collator needs a fast tokenizer"):
        collator(Slow(), [small[1]], [TokenAligner(*small)], mode=mode)
    for missing in (Slow(), None):
        with pytest.raises(ValueError, match="teacher 0: the collator needs a fast tokenizer"):
            collator(small[0], [missing], [TokenAligner(*small)], mode=mode)


def test_a_tokenizer_without_a_chat_template_is_refused_in_chat(small: Small) -> None:
    bare = copy.deepcopy(small[1])
    bare.chat_template = None
    with pytest.raises(ValueError, match=r"teacher 0, chat template: .*no chat template"):
        collator(small[0], [bare], [TokenAligner(*small)], mode="chat")
    assert collator(small[0], [bare], [TokenAligner(*small)])


def test_an_aligner_of_other_tokenizers_is_refused(small: Small) -> None:
    first, second = small
    with pytest.raises(ValueError, match=r"teacher 0: the aligner's student: .*ids differ"):
        collator(first, [second], [TokenAligner(second, second)])
    with pytest.raises(ValueError, match="teacher 0: the aligner's teacher"):
        collator(first, [second], [TokenAligner(first, first)])


def test_a_teacher_without_an_aligner_must_have_the_students_tokenizer(small: Small) -> None:
    first, second = small
    assert collator(first, [first, None], [None, None])
    with pytest.raises(ValueError, match="teacher 1: no aligner"):
        collator(first, [first, second], [None, None])


def test_what_has_no_padding_token_pads_with_its_end(small: Small) -> None:
    bare = without_padding_token(small[0])
    bare.padding_side = "left"
    batch = collator(bare, [None], [None])(
        [{"message_log": [{"content": text}], "idx": 0, "loss_multiplier": 1.0} for text in ("a", "a b")]
    )
    assert (bare.pad_token, bare.padding_side) == (bare.eos_token, "right")
    assert batch["input_ids"][0].tolist() == [ord("a"), bare.eos_token_id, bare.eos_token_id]


def test_what_has_nothing_to_pad_with_is_refused(small: Small) -> None:
    bare = without_padding_token(small[0])
    bare.eos_token = None
    with pytest.raises(ValueError, match="neither a padding nor an end token"):
        collator(bare, [None], [None])

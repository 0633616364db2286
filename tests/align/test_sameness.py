"""When positions are one to one: the ids' bytes decide, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atroposlib.align.sameness import compare
from atroposlib.align.vocabulary import Vocabulary, read_vocabulary
from tests.support.real_tokenizers import byte_table
from tests.support.tokenizer_files import added, byte_level, gemma_like, llama_like, write

ROLES = {"bos_token": "<s>", "eos_token": "</s>"}
Changed = Callable[[dict[str, Any]], None]


def table(directory: Path, change: Changed | None = None, **config: str) -> Vocabulary:
    """The table of the Llama-like tokenizer after a change."""
    tokenizer = llama_like()
    if change is not None:
        change(tokenizer)
    return read_vocabulary(write(directory, tokenizer, {**ROLES, **config}))


def no_change(tokenizer: dict[str, Any]) -> None:
    """The very same."""


def other_merges(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["merges"].reverse()


def other_normalizer(tokenizer: dict[str, Any]) -> None:
    tokenizer["normalizer"]["normalizers"].append({"type": "NFC"})


def renamed_special(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["vocab"]["<begin>"] = tokenizer["model"]["vocab"].pop("<s>")
    tokenizer["added_tokens"][1] = added(1, "<begin>")


def special_made_text(tokenizer: dict[str, Any]) -> None:
    del tokenizer["added_tokens"][0]
    tokenizer["model"]["unk_token"] = None


@pytest.mark.parametrize("change", [no_change, other_merges, other_normalizer, special_made_text])
def test_what_does_not_touch_the_bytes_of_an_id_does_not_count(tmp_path: Path, change: Changed) -> None:
    match = compare(table(tmp_path / "one"), table(tmp_path / "other", change))
    assert (match.same, match.differing, match.reason) == (True, 0, "")


def test_names_of_special_tokens_do_not_count(tmp_path: Path) -> None:
    assert compare(
        table(tmp_path / "one"), table(tmp_path / "other", renamed_special, bos_token="<begin>")
    ).same


def test_what_ends_a_text_and_what_fills_it_up_does_not_count(tmp_path: Path) -> None:
    def with_end_of_turn(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"].append(added(265, "<|im_end|>"))

    chat = table(tmp_path / "chat", with_end_of_turn, eos_token="<|im_end|>", pad_token="</s>")
    base = table(tmp_path / "base", with_end_of_turn, pad_token="<unk>")
    assert chat.roles != base.roles
    assert compare(chat, base).same


def test_one_id_with_other_bytes_is_told(tmp_path: Path) -> None:
    def other_piece(tokenizer: dict[str, Any]) -> None:
        tokenizer["model"]["vocab"]["aB"] = tokenizer["model"]["vocab"].pop("ab")
        tokenizer["model"]["merges"].pop()

    number = llama_like()["model"]["vocab"]["ab"]
    match = compare(table(tmp_path / "one"), table(tmp_path / "other", other_piece))
    assert (match.same, match.differing) == (False, 1)
    assert match.reason == (
        f"1 ids differ, the first is {number}: b'ab' to the student, b'aB' to the teacher"
    )


def test_two_ids_that_changed_places_differ_though_all_strings_are_there(tmp_path: Path) -> None:
    def turned(tokenizer: dict[str, Any]) -> None:
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    match = compare(table(tmp_path / "one"), table(tmp_path / "other", turned))
    assert (match.same, match.differing, match.overlap) == (False, 2, 1.0)


def test_a_token_that_only_one_has_differs_on_either_side(tmp_path: Path) -> None:
    def longer(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"].append(added(265, "<tool>", special=False))

    short, long = table(tmp_path / "one"), table(tmp_path / "other", longer)
    for one, other in ((short, long), (long, short)):
        match = compare(one, other)
        assert (match.same, match.differing) == (False, 1)
        assert "no token" in match.reason


def test_a_special_token_beside_text_is_read_by_its_name(tmp_path: Path) -> None:
    def text(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"].append(added(265, "<think>", special=False))

    def special(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"].append(added(265, "<think>"))

    def other_name(tokenizer: dict[str, Any]) -> None:
        tokenizer["added_tokens"].append(added(265, "<thought>"))

    one = table(tmp_path / "text", text)
    assert compare(one, table(tmp_path / "special", special)).same
    assert compare(one, table(tmp_path / "other", other_name)).differing == 1


def two_ends(tokenizer: dict[str, Any]) -> None:
    tokenizer["added_tokens"] += [added(265, "<|im_end|>"), added(266, "<|eot_id|>")]


def test_another_end_of_turn_makes_them_differ(tmp_path: Path) -> None:
    one = table(tmp_path / "one", two_ends, eos_token="<|im_end|>")
    match = compare(one, table(tmp_path / "other", two_ends, eos_token="<|eot_id|>"))
    assert (match.same, match.differing) == (False, 0)
    assert match.reason == "end_of_turn is id 265 to the student, 266 to the teacher"


def test_what_begins_a_text_is_a_setting_of_the_checkpoint(tmp_path: Path) -> None:
    assert compare(table(tmp_path / "one"), table(tmp_path / "other", bos_token="<unk>")).same


def test_overlap_counts_the_student_s_strings(tmp_path: Path) -> None:
    one = read_vocabulary(write(tmp_path / "one", byte_level()))
    other = read_vocabulary(write(tmp_path / "other", gemma_like()))
    ours, theirs = ({each.bytes_of(number) for number in range(len(each))} - {b""} for each in (one, other))
    assert compare(one, other).overlap == pytest.approx(len(ours & theirs) / len(ours))
    assert compare(other, one).overlap == pytest.approx(len(ours & theirs) / len(theirs))


def test_families_of_real_tokenizers_are_told_apart() -> None:
    """DeepSeek V4 has all that V3 has, and more."""
    one, other = byte_table("deepseek_v3"), byte_table("deepseek_v4")
    match = compare(one, other)
    assert not match.same
    assert match.overlap == 1.0
    assert match.differing == len(other) - len(one)
    assert compare(one, byte_table("qwen3")).overlap < 0.7

"""Which ids get which role, from the two files alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atroposlib.align.vocabulary import SPECIAL, TEXT, Vocabulary, read_vocabulary
from tests.support.tokenizer_files import added, byte_level, llama_like, unigram, write

MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<think>", "</think>"]
FIRST = 270


def marked(directory: Path, config: dict[str, Any] | None, markers: list[str] = MARKERS) -> Vocabulary:
    tokenizer = byte_level()
    tokenizer["added_tokens"] = [
        added(FIRST + index, marker, special="think" not in marker) for index, marker in enumerate(markers)
    ]
    return read_vocabulary(write(directory, tokenizer, config))


def test_the_configuration_names_them_as_text_or_as_tokens(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<|im_start|>", "special": True},
        "eos_token": "<|im_end|>",
        "pad_token": None,
    }
    roles = marked(tmp_path, config).roles
    assert roles == {
        "bos": FIRST + 1,
        "eos": FIRST + 2,
        "end_of_turn": FIRST + 2,
        "think_open": FIRST + 4,
        "think_close": FIRST + 5,
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"eos_token": "<|eot_id|>"}, "<|eot_id|>"),
        ({"eos_token": "<|endoftext|>", "chat_template": "{{ x }}<|eot_id|>"}, "<|eot_id|>"),
        ({"chat_template": [{"name": "default", "template": "<|eot_id|>"}]}, "<|eot_id|>"),
        ({"eos_token": "<|endoftext|>"}, "<|im_end|>"),
        (None, "<|im_end|>"),
    ],
    ids=["own end", "chat template", "named chat templates", "what there is", "no configuration"],
)
def test_end_of_turn(tmp_path: Path, config: dict[str, Any] | None, expected: str) -> None:
    assert marked(tmp_path, config).roles["end_of_turn"] == FIRST + MARKERS.index(expected)


def test_without_a_marker_the_end_of_text_ends_a_turn(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path, llama_like(), {"bos_token": "<s>", "eos_token": "</s>"}))
    assert vocabulary.roles == {"bos": 1, "eos": 2, "unk": 0, "end_of_turn": 2}


def test_reasoning_markers_are_text_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    vocabulary = marked(tmp_path, None)
    opener = vocabulary.roles["think_open"]
    assert vocabulary.kinds[opener] == TEXT
    assert vocabulary.bytes_of(opener) == b"<think>"


def test_half_a_pair_of_reasoning_markers_is_none(tmp_path: Path) -> None:
    assert "think_open" not in marked(tmp_path, None, ["<think>"]).roles


def test_a_role_named_by_the_configuration_makes_a_piece_special(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path, byte_level(), {"pad_token": "th"}))
    assert vocabulary.kinds[vocabulary.roles["pad"]] == SPECIAL
    assert vocabulary.names[256] == "th"


def test_a_named_token_that_has_no_id_gets_no_role(tmp_path: Path) -> None:
    assert "pad" not in marked(tmp_path, {"pad_token": "[PAD]"}).roles


def test_tokens_that_only_the_configuration_lists_are_there(tmp_path: Path) -> None:
    listed = {
        "280": {"content": "<|new|>", "special": True},
        str(FIRST): {"content": "<|endoftext|>", "special": True},
    }
    vocabulary = marked(tmp_path, {"added_tokens_decoder": listed, "eos_token": "<|new|>"})
    assert vocabulary.roles["eos"] == 280
    assert vocabulary.names[280] == "<|new|>"


def test_empty_places_of_the_configuration_are_read(tmp_path: Path) -> None:
    empty = dict.fromkeys(["bos_token", "added_tokens_decoder", "extra_special_tokens", "chat_template"])
    extra = {
        "extra_special_tokens": {"image_token": "th"},
        "additional_special_tokens": [{"content": "<|eot_id|>"}],
    }
    assert marked(tmp_path / "empty", empty).roles == marked(tmp_path / "none", None).roles
    assert marked(tmp_path / "extra", empty | extra).names[256] == "th"


def test_the_model_s_own_unknown_piece_has_the_role(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path, unigram()))
    assert vocabulary.roles == {"unk": 2}
    assert vocabulary.kinds[2] == SPECIAL

"""Text and markers become ids; the right ids come from one call of the tokenizer itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.vocabulary import read_vocabulary
from atroposlib.errors import ConfigError
from tests.support.tokenizer_files import added, byte_level, gemma_like, llama_like, unigram, write


def encoder_of(directory: Path, file: dict[str, Any]) -> tuple[TextEncoder, Tokenizer]:
    """The encoder, and the tokenizer that it is a copy of."""
    write(directory, file)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    return TextEncoder(tokenizer, read_vocabulary(directory)), tokenizer


FAMILIES = {
    "byte_level": (byte_level(), "<|end|>"),
    "llama_like": (llama_like(), "</s>"),
    "gemma_like": (gemma_like(), "<end_of_turn>"),
    "unigram_always": (unigram("always"), "</s>"),
    "unigram_first": (unigram("first"), "</s>"),
    "unigram_never": (unigram("never"), "</s>"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "texts",
    [("a b", "a b"), ("", "a  ab"), ("ba", ""), (" a", " ab a")],
    ids=("two", "first", "last", "spaces"),
)
def test_parts_are_what_one_call_makes_of_the_whole(
    family: str, texts: tuple[str, str], tmp_path: Path
) -> None:
    file, marker = FAMILIES[family]
    encoder, tokenizer = encoder_of(tmp_path, file)
    parts: list[str | int] = [encoder.marker_names[marker]]
    for text in texts:
        parts += [text] * bool(text) + [encoder.marker_names[marker]]
    whole = marker + "".join(text + marker for text in texts)
    assert encoder.encode_parts(parts) == tokenizer.encode(whole, add_special_tokens=False).ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_at_the_begin_is_encoded_as_the_tokenizer_does(family: str, tmp_path: Path) -> None:
    file, marker = FAMILIES[family]
    encoder, tokenizer = encoder_of(tmp_path, file)
    whole = tokenizer.encode(f"a ab{marker}a", add_special_tokens=False).ids
    assert encoder.encode_parts(["a ab", encoder.marker_names[marker], "a"]) == whole
    assert encoder.encode("a ab") == tokenizer.encode("a ab", add_special_tokens=False).ids


@pytest.mark.parametrize("family", ["byte_level", "llama_like", "gemma_like"])
def test_the_name_of_a_marker_in_a_text_is_text(family: str, tmp_path: Path) -> None:
    file, marker = FAMILIES[family]
    encoder, tokenizer = encoder_of(tmp_path, file)
    text = f"a{marker}b"
    assert encoder.marker_names[marker] in tokenizer.encode(text).ids
    ids = encoder.encode(text)
    assert encoder.marker_names[marker] not in ids
    assert encoder.vocabulary.text(ids) == text.encode()


def test_a_marker_that_only_the_configuration_calls_special_is_text_in_a_text(tmp_path: Path) -> None:
    file = copy.deepcopy(byte_level())
    file["added_tokens"] = [added(259, "<|end|>", special=False)]
    write(tmp_path, file, {"eos_token": "<|end|>"})
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    encoder = TextEncoder(tokenizer, read_vocabulary(tmp_path))
    assert encoder.marker_names == {"<|end|>": 259}
    assert 259 not in encoder.encode("a<|end|>")


def test_texts_in_a_row_are_one_text(tmp_path: Path) -> None:
    encoder, tokenizer = encoder_of(tmp_path, byte_level())
    assert encoder.encode_parts(["a t", "h"]) == tokenizer.encode("a th").ids
    assert len(encoder.encode_parts(["a t", "h"])) == 2


def test_the_tokenizer_itself_is_left_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=4)
    before = json.loads(tokenizer.to_str())
    encoder = TextEncoder(tokenizer, read_vocabulary(tmp_path))
    assert len(encoder.encode("abc")) == 3
    assert json.loads(tokenizer.to_str()) == before


@pytest.mark.parametrize(
    ("flags", "text", "expected"),
    [
        ({}, "a <|end|> b", ["a ", 259, " b"]),
        ({"rstrip": True}, "a <|end|> \n b", ["a ", 259, "b"]),
        ({"lstrip": True}, "a \n<|end|> b", ["a", 259, " b"]),
        ({"rstrip": True}, "<|end|> <|end|>", [259, 259]),
    ],
    ids=["neither", "behind", "before", "between"],
)
def test_white_space_that_a_marker_swallows_is_in_no_text(
    flags: dict[str, bool], text: str, expected: list[str | int], tmp_path: Path
) -> None:
    file = copy.deepcopy(byte_level())
    file["added_tokens"] = [added(259, "<|end|>", **flags)]
    encoder, tokenizer = encoder_of(tmp_path, file)
    parts = list(encoder.split(text))
    assert [value for value, _, _ in parts] == expected
    assert all(value == (text[begin:end] if isinstance(value, str) else 259) for value, begin, end in parts)
    assert encoder.encode_parts(expected) == tokenizer.encode(text).ids


def test_of_two_names_the_longer_is_read(tmp_path: Path) -> None:
    file = copy.deepcopy(byte_level())
    file["added_tokens"] = [added(259, "<|end"), added(260, "<|end|>")]
    encoder, _ = encoder_of(tmp_path, file)
    assert [value for value, _, _ in encoder.split("<|end|><|end")] == [260, 259]


def test_what_cannot_encode_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot encode") as caught:
        TextEncoder(object())
    assert caught.value.code == "align.unsupported"

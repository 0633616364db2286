"""Spellings of byte strings: the tokenizer's own where it is text, the longest tokens that fit elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from atroposlib.align.tables.table import SPECIAL, TEXT
from atroposlib.projection.speller import Speller
from atroposlib.projection.splits import KEPT, NO_ID, Splits, split
from tests.support.tokenizer_files import FAMILIES, llama_like, write

SpellerOf = Callable[[str], Speller]
PAIRS = [(student, teacher) for student in FAMILIES for teacher in FAMILIES if student != teacher]


def piece_ids(tokenizer: dict[str, object], *pieces: str) -> list[int]:
    vocab = Tokenizer.from_str(json.dumps(tokenizer)).get_vocab()
    return [vocab[piece] for piece in pieces]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_tokens_of_a_spelling_are_the_bytes_of_the_string(
    source: str, target: str, speller: SpellerOf
) -> None:
    ours, theirs = speller(source), speller(target)
    strings = [part for part in ours.parts if part]
    spelled = 0
    for string, spelling in zip(strings, theirs.spell(strings), strict=True):
        if spelling.ids:
            assert b"".join(theirs.vocabulary.bytes_of(number) for number in spelling.ids) == string
            spelled += 1
        assert not set(spelling.ids) & set(theirs.vocabulary.names)
    assert spelled >= 3


def test_what_is_text_is_written_as_the_tokenizer_writes_it(speller: SpellerOf) -> None:
    llama = speller("llama_like")
    ids = piece_ids(llama_like(), "ab", "a", "<0xC3>", "<0xA9>", "\u2581a")
    assert [spelling.ids for spelling in llama.spell([b"aba", "é".encode(), b" a"])] == [
        ids[:2],
        ids[2:4],
        ids[4:],
    ]


@pytest.mark.parametrize("family", ["llama_like", "unigram_always", "unigram_first", "byte_level_prefix"])
def test_no_space_is_put_before_a_token(family: str, speller: SpellerOf) -> None:
    one = speller(family)
    (spelling,) = one.spell([b"a"])
    assert [one.parts[number] for number in spelling.ids] == [b"a"]


def test_a_part_of_a_character_is_split_into_the_longest_tokens(speller: SpellerOf) -> None:
    level = speller("byte_level")
    # "Ãa" in the signs of bytes is C3 61: no text, but one token.
    half, plain = level.spell([b"\xc3a", b"\xa9th"])
    assert [level.parts[number] for number in half.ids] == [b"\xc3a"]
    assert [level.parts[number] for number in plain.ids] == [b"\xa9", b"th"]
    assert not half.encoded
    assert not plain.encoded


def test_what_has_no_bytes_for_a_string_spells_nothing(speller: SpellerOf) -> None:
    spellings = speller("unigram_never").spell([b"\xff", b"a\xff", b"z"])
    assert [spelling.ids for spelling in spellings] == [[], [], []]


def test_a_string_that_is_spelled_like_a_marker_is_text(speller: SpellerOf) -> None:
    level = speller("byte_level")
    (spelling,) = level.spell([b"<|end|>"])
    assert [level.parts[number] for number in spelling.ids] == [bytes([byte]) for byte in b"<|end|>"]


def test_a_normalisation_does_not_change_what_is_spelled(tmp_path: Path) -> None:
    tokenizer = FAMILIES["byte_level"] | {"normalizer": {"type": "NFC"}}
    composing = Speller(write(tmp_path / "nfc", tokenizer))
    (spelling,) = composing.spell(["e\u0301".encode()])
    assert b"".join(composing.parts[number] for number in spelling.ids) == "e\u0301".encode()
    assert not spelling.encoded


def test_splits_keep_the_first_tokens_and_count_all(speller: SpellerOf) -> None:
    level, gemma = speller("byte_level"), speller("gemma_like")
    splits = split(level, gemma)
    sign = level.by_bytes["<｜sign▁off｜>".encode()]
    assert splits.counts[sign] == len("<｜sign▁off｜>".encode())
    assert (splits.ids[sign] != NO_ID).all()
    kinds = level.vocabulary.kinds
    assert (splits.counts[kinds == SPECIAL] == 0).all()
    assert (splits.counts[kinds == TEXT] > 0).all()
    assert splits.ids.shape == (len(level.vocabulary), KEPT)
    half = level.by_bytes[b"\xc3a"]
    assert splits.first[half] == NO_ID
    assert splits.ids[half, 0] == gemma.by_bytes[b"\xc3"]


def test_a_loaded_tokenizer_spells_as_its_directory_does(family_dir: Callable[[str], Path]) -> None:
    from transformers import PreTrainedTokenizerFast

    directory = family_dir("llama_like")
    by_name = Speller(directory)
    loaded = Speller(PreTrainedTokenizerFast.from_pretrained(str(directory)))
    strings = [part for part in by_name.parts if part]
    assert loaded.spell(strings) == by_name.spell(strings)


@pytest.mark.parametrize("name", ["llama3_1", "mistral_v1", "smollm2"])
def test_real_vocabularies_are_spelled_without_a_wrong_byte(
    name: str, real_speller: SpellerOf, real_splits: Callable[[str, str], Splits]
) -> None:
    source, target = real_speller(name), real_speller("qwen3")
    splits = real_splits(name, "qwen3")
    text = np.flatnonzero(source.vocabulary.kinds == TEXT)
    assert (splits.counts[text] > 0).mean() == 1.0
    replacement = "\ufffd".encode()
    for number in text.tolist():
        ids = splits.ids[number]
        begin = b"".join(target.parts[other] for other in ids[ids != NO_ID].tolist())
        assert source.parts[number].startswith(begin)
        assert replacement in source.parts[number] or replacement not in begin

"""Byte tables of small tokenizers of every family, against the library's own encoder and decoder."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from atroposlib.align.vocabulary import SPECIAL, TEXT, UNUSED, Vocabulary, read_vocabulary
from tests.support.tokenizer_files import FAMILIES, added, byte_level, gemma_like, llama_like, unigram, write

ALPHABET = (" ", "a", "b", "é", "\n")


def both(directory: Path, family: str) -> tuple[Vocabulary, Tokenizer]:
    tokenizer = FAMILIES[family]
    return read_vocabulary(write(directory, tokenizer)), Tokenizer.from_str(json.dumps(tokenizer))


def all_texts(longest: int = 4) -> list[str]:
    return [
        "".join(letters)
        for length in range(1, longest + 1)
        for letters in itertools.product(ALPHABET, repeat=length)
    ]


@pytest.mark.parametrize("family", ["byte_level", "llama_like", "gemma_like"])
def test_every_short_text_comes_back_byte_for_byte(tmp_path: Path, family: str) -> None:
    vocabulary, tokenizer = both(tmp_path, family)
    assert set(vocabulary.lossy) <= {"space_sign"}
    texts = all_texts()
    for text, encoded in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        assert vocabulary.text(encoded.ids) == text.encode(), (text, encoded.tokens)


@pytest.mark.parametrize("family", ["byte_level_prefix", "unigram_always", "unigram_first", "unigram_never"])
def test_a_text_of_known_pieces_comes_back_but_for_a_leading_space(tmp_path: Path, family: str) -> None:
    vocabulary, tokenizer = both(tmp_path, family)
    assert ("prefix" in vocabulary.lossy) == (family != "unigram_never")
    unknown = vocabulary.roles.get("unk")
    kept = 0
    # A space at the begin of a section of text, also behind the added token, looks like the one put in.
    texts = [text for text in all_texts() if not text.startswith(" ") and "éé " not in text]
    for text, encoded in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
        if unknown not in encoded.ids:
            assert vocabulary.text(encoded.ids) == text.encode(), (text, encoded.tokens)
            kept += 1
    assert kept >= 50


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_pair_of_pieces_reads_as_the_library_decodes_it(tmp_path: Path, family: str) -> None:
    """Behind a first piece, which keeps the decoder's treatment of the begin of a text out of the way."""
    vocabulary, tokenizer = both(tmp_path, family)
    # Bytes that are no character by themselves are decoded into replacement signs, which say nothing.
    texts = [number for number in range(len(vocabulary)) if _is_utf8(vocabulary.bytes_of(number))]
    first = next(number for number in texts if vocabulary.bytes_of(number) in (b"a", b" a"))
    literal = {261} if family.startswith("byte_level") else set()
    begin = tokenizer.decode([first])
    for one, two in itertools.product(texts[:400], texts[-40:]):
        if not literal & {one, two}:
            expected = tokenizer.decode([first, one, two])
            assert (begin.encode() + vocabulary.bytes_of(one) + vocabulary.bytes_of(two)) == expected.encode()


def _is_utf8(part: bytes) -> bool:
    try:
        return bool(part.decode())
    except UnicodeDecodeError:
        return False


def test_half_a_character_keeps_its_byte(tmp_path: Path) -> None:
    byte_pieces = read_vocabulary(write(tmp_path / "spm", llama_like()))
    assert byte_pieces.bytes_of(3 + 0xC3) == b"\xc3"
    signs = read_vocabulary(write(tmp_path / "bytes", byte_level()))
    assert signs.bytes_of(0xC3) == b"\xc3"
    assert signs.bytes_of(258) == b"\xc3a"


def test_an_added_token_outside_the_byte_signs_is_literal_text(tmp_path: Path) -> None:
    tokenizer = byte_level()
    vocabulary = read_vocabulary(write(tmp_path, tokenizer))
    for text in ("<｜sign▁off｜>", "éé"):
        (number,) = Tokenizer.from_str(json.dumps(tokenizer)).encode(text).ids
        assert vocabulary.bytes_of(number) == text.encode()


def test_an_added_run_of_spaces_goes_through_the_decoder(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path, gemma_like()))
    assert b"  " in [vocabulary.bytes_of(number) for number in range(len(vocabulary))]


def test_the_space_put_in_behind_a_special_token_is_not_text(tmp_path: Path) -> None:
    vocabulary, tokenizer = both(tmp_path, "llama_like")
    ids = tokenizer.encode("<s>a b</s> a").ids
    assert vocabulary.text(ids) == b"a b a"
    assert vocabulary.lengths(ids).tolist() == [0, 1, 1, 1, 0, 0, 2]


def test_scheme_first_puts_a_space_in_once(tmp_path: Path) -> None:
    vocabulary, tokenizer = both(tmp_path, "unigram_first")
    ids = tokenizer.encode("a</s> a").ids
    assert vocabulary.text(ids) == b"a a"


def test_words_are_parted_by_spaces_and_the_first_has_none(tmp_path: Path) -> None:
    vocabulary, tokenizer = both(tmp_path, "wordpiece")
    ids = tokenizer.encode("[CLS] abb a. [SEP]").ids
    assert vocabulary.text(ids) == b"abb a."
    assert {"whitespace", "lowercase", "accents", "cleanup", "unknown"} == set(vocabulary.lossy)


def test_special_tokens_have_a_name_and_no_bytes(tmp_path: Path) -> None:
    vocabulary, _ = both(tmp_path, "gemma_like")
    specials = [number for number in range(len(vocabulary)) if vocabulary.kinds[number] == SPECIAL]
    assert [vocabulary.names[number] for number in specials] == [
        "<pad>",
        "<eos>",
        "<bos>",
        "<end_of_turn>",
        "<image>",
    ]
    assert not vocabulary.lengths(specials).any()


def test_ids_without_a_token_are_unused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer["added_tokens"].append(added(300, "<tool>", special=False))
    vocabulary = read_vocabulary(write(tmp_path, tokenizer))
    assert len(vocabulary) == 301
    assert vocabulary.kinds[262:].tolist() == [UNUSED] * 38 + [TEXT]
    # The head of a model may be wider than its tokenizer, and -1 is how others pad.
    assert vocabulary.lengths([300, 301, 10**6, -1]).tolist() == [6, 0, 0, 0]
    assert vocabulary.bytes_of(-1) == vocabulary.bytes_of(301) == b""


@pytest.mark.parametrize("padding", [[-1, -1], [1, 1]])
@pytest.mark.parametrize("family", ["llama_like", "unigram_first", "unigram_always"])
def test_padding_before_a_text_changes_nothing_of_it(tmp_path: Path, family: str, padding: list[int]) -> None:
    vocabulary, tokenizer = both(tmp_path, family)
    ids = tokenizer.encode("a b").ids
    assert vocabulary.text(padding + ids + padding) == b"a b"


def test_no_ids_are_no_text(tmp_path: Path) -> None:
    for family in ("llama_like", "unigram_first", "byte_level"):
        assert read_vocabulary(write(tmp_path / family, FAMILIES[family])).text([]) == b""


def test_a_spelt_byte_piece_is_told_as_a_loss_where_the_model_finds_it(tmp_path: Path) -> None:
    tokenizer = llama_like()
    pieces = [[piece, -1.0] for piece in tokenizer["model"]["vocab"]]
    tokenizer["model"] = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": True}
    vocabulary = read_vocabulary(write(tmp_path, tokenizer))
    ids = Tokenizer.from_str(json.dumps(tokenizer)).encode("a<0x41>").ids
    assert vocabulary.text(ids) == b"aA"
    assert vocabulary.lossy == ("byte_pieces", "space_sign")
    assert "byte_pieces" not in read_vocabulary(write(tmp_path / "bpe", llama_like())).lossy


def test_an_unknown_piece_is_told_as_a_loss(tmp_path: Path) -> None:
    assert "unknown" in read_vocabulary(write(tmp_path / "unigram", unigram())).lossy
    incomplete = byte_level()
    del incomplete["model"]["vocab"]["z"]
    assert "unknown" in read_vocabulary(write(tmp_path / "bytes", incomplete)).lossy

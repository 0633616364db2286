"""The builder against the same steps on a dense matrix, and each step by what it is for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from atroposlib.align.tables.table import TEXT
from atroposlib.projection.build import WIDTH, BuildOptions, build, build_of
from atroposlib.projection.rows import NO_ID, Rows
from atroposlib.projection.specials import special_cells
from atroposlib.projection.speller import Speller
from atroposlib.projection.splits import Splits
from tests.support.tokenizer_files import BYTE_PIECES, FAMILIES, SIGN, Part, added, bpe, whole, write

SpellerOf = Callable[[str], Speller]
PLAIN = BuildOptions(reverse_pass=False, special_tokens=False, exact_map=False)
LOSSLESS = ("byte_level", "llama_like", "gemma_like")


def dense(student: Speller, teacher: Speller, texts: dict[int, list[bytes]], reverse: bool) -> np.ndarray:
    """Weights .9 x .1^i of the first four tokens, shared out to 1, of every token that is text."""
    matrix = np.zeros((len(student.vocabulary), len(teacher.vocabulary)))
    for source, target, swapped in [(student, teacher, False), (teacher, student, True)][: 1 + reverse]:
        for number, pieces in texts[id(source)].items():
            ids = [target.parts.index(piece) for piece in pieces][:4]
            weights = [0.9 * 0.1**place for place in range(len(ids))]
            for other, weight in zip(ids, weights, strict=True):
                row, column = (other, number) if swapped else (number, other)
                matrix[row, column] += weight / sum(weights)
    return matrix


def as_dense(rows: Rows, width: int) -> np.ndarray:
    matrix = np.zeros((len(rows.indices), width))
    for row, (ids, weights) in enumerate(zip(rows.indices.tolist(), rows.weights.tolist(), strict=True)):
        for number, weight in zip(ids, weights, strict=True):
            if number != NO_ID:
                matrix[row, number] += weight
    return matrix


def letters(pieces: list[str], **parts: Part | list[Part]) -> Part:
    """A vocabulary of these pieces, of which the longer ones are merged from their left."""
    merges = [[piece[:-1], piece[-1]] for piece in pieces if len(piece) > 1]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return whole(bpe(pieces, merges), level, pre_tokenizer=level, **parts)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Speller, Speller]:
    """Students of a, b, c, ab, abc, abcab, cb; a teacher of a, b, c, bc, ca."""
    student = letters(["a", "b", "c", "ab", "abc", "abca", "abcab", "cb"])
    teacher = letters(["a", "b", "c", "bc", "ca"])
    return Speller(write(tmp_path / "student", student)), Speller(write(tmp_path / "teacher", teacher))


# How each side's tokens are written by the other, by hand: merges apply in their order, so bc before ca.
IN_TEACHER = {
    b"a": "a",
    b"b": "b",
    b"c": "c",
    b"ab": "a b",
    b"abc": "a bc",
    b"abca": "a bc a",
    b"abcab": "a bc a b",
    b"cb": "c b",
}
IN_STUDENT = {b"a": "a", b"b": "b", b"c": "c", b"bc": "b c", b"ca": "c a"}


def by_hand(pair: tuple[Speller, Speller], reverse: bool) -> np.ndarray:
    texts = {
        id(side): {number: written[part].encode().split() for number, part in enumerate(side.parts)}
        for side, written in zip(pair, (IN_TEACHER, IN_STUDENT), strict=True)
    }
    matrix = dense(*pair, texts, reverse)
    return matrix / matrix.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_weights_are_those_of_a_dense_matrix(pair: tuple[Speller, Speller], reverse: bool) -> None:
    options = BuildOptions(top_k=8, reverse_pass=reverse, special_tokens=False, exact_map=False)
    assert as_dense(build(*pair, options), 5) == pytest.approx(by_hand(pair, reverse))


def test_a_row_keeps_its_heaviest_columns_and_sums_to_one(pair: tuple[Speller, Speller]) -> None:
    rows = build(*pair, BuildOptions(top_k=2, reverse_pass=False, special_tokens=False, exact_map=False))
    row = pair[0].parts.index(b"abcab")
    assert [pair[1].parts[number] for number in rows.indices[row]] == [b"a", b"bc"]
    # The third token is "a" again, which adds to the first.
    assert rows.weights[row] == pytest.approx([1.01 / 1.11, 0.1 / 1.11])


def test_equal_bytes_stand_alone(pair: tuple[Speller, Speller]) -> None:
    rows = build(*pair, BuildOptions())
    for part in (b"a", b"b", b"c"):
        row = pair[0].parts.index(part)
        assert rows.indices[row].tolist() == [pair[1].parts.index(part), NO_ID, NO_ID, NO_ID]
        assert rows.weights[row].tolist() == [1.0, 0.0, 0.0, 0.0]
    # Without the map, "c" has a share of "bc" and "ca", in which it is written.
    shared = build(*pair, BuildOptions(exact_map=False))
    assert (shared.indices[pair[0].parts.index(b"c")] != NO_ID).sum() == 3


def test_equal_bytes_are_found_behind_other_signs(speller: SpellerOf) -> None:
    """Pieces are compared by what they stand for: a sign of a space is a space."""
    ours, theirs = speller("byte_level"), speller("gemma_like")
    rows = build(ours, theirs, BuildOptions())
    for number in np.flatnonzero(ours.vocabulary.kinds == TEXT).tolist():
        ids = rows.indices[number]
        if ours.parts[number] in theirs.by_bytes:
            assert theirs.parts[ids[0]] == ours.parts[number]
            assert ids[1:].tolist() == [NO_ID] * 3


def test_of_two_ids_of_equal_bytes_the_one_that_is_written_is_meant(speller: SpellerOf) -> None:
    """Llama has both the byte piece <0x61> and the letter a."""
    ours, theirs = speller("byte_level"), speller("llama_like")
    letter = Tokenizer.from_str(json.dumps(FAMILIES["llama_like"])).token_to_id("a")
    rows = build(ours, theirs, BuildOptions())
    assert theirs.by_bytes[b"a"] < letter
    assert rows.indices[ours.by_bytes[b"a"], 0] == letter


@pytest.mark.parametrize("student", LOSSLESS)
@pytest.mark.parametrize("teacher", LOSSLESS)
@pytest.mark.parametrize("scale_trick", [False, True])
def test_rows_sum_to_one_and_fall(student: str, teacher: str, scale_trick: bool, speller: SpellerOf) -> None:
    rows = build(speller(student), speller(teacher), BuildOptions(scale_trick=scale_trick))
    some = rows.weights.sum(axis=1) > 0
    assert rows.weights[some].sum(axis=1) == pytest.approx(1.0)
    first = rows.weights[:, :-1] if scale_trick else rows.weights
    assert (np.diff(first, axis=1) <= 0).all()
    assert some[speller(student).vocabulary.kinds == TEXT].all()


def test_a_byte_without_a_character_maps_to_that_byte(speller: SpellerOf) -> None:
    ours, theirs = speller("byte_level"), speller("llama_like")
    rows = build(ours, theirs, BuildOptions())
    half = rows.indices[ours.by_bytes[b"\xc3a"]]
    assert [theirs.parts[number] for number in half if number != NO_ID] == [b"\xc3", b"a"]
    replacement = {theirs.by_bytes[bytes([byte])] for byte in "\ufffd".encode()}
    written = {int(number) for part in (b"\xc3", b"\xa9") for number in rows.indices[ours.by_bytes[part]]}
    assert not replacement & written


def test_the_scale_trick_gives_a_share_to_the_last_column(pair: tuple[Speller, Speller]) -> None:
    plain = build(*pair, BuildOptions(exact_map=False))
    scaled = build(*pair, BuildOptions(exact_map=False, scale_trick=True))
    row = pair[0].parts.index(b"cb")
    assert scaled.indices[row].tolist() == [*plain.indices[row, :3], NO_ID]
    assert scaled.weights[row, -1] == pytest.approx(0.2 / 1.2)
    assert scaled.weights[row, :3] == pytest.approx(plain.weights[row, :3] / 1.2)
    exact = build(*pair, BuildOptions(scale_trick=True))
    assert exact.weights[pair[0].parts.index(b"a")].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_last_column_is_a_token_where_a_row_is_full(tmp_path: Path) -> None:
    """Reversed, every token that begins with "a" is a column of the row of "a"."""
    others = [chr(code) for code in range(ord("b"), ord("z") + 1)]
    many = [f"a{one}" for one in others] + [f"a{one}{other}" for one in others[:4] for other in others[:4]]
    student = Speller(write(tmp_path / "student", letters(["a", *others])))
    teacher = Speller(write(tmp_path / "teacher", letters(["a", *others, *many])))
    options = BuildOptions(exact_map=False, scale_trick=True)
    rows = build(student, teacher, options)
    assert len(many) > WIDTH
    row = student.parts.index(b"a")
    assert rows.indices[row, -1] != NO_ID
    assert rows.weights[row, -1] > rows.weights[row, 1]


def test_markers_map_by_role_then_by_name(tmp_path: Path) -> None:
    student = letters(
        ["a"],
        added_tokens=[added(1, "<|im_end|>"), added(2, "<|vision_start|>"), added(3, "<|fim_prefix|>")],
    )
    teacher = letters(
        ["a"], added_tokens=[added(1, "<end_of_turn>"), added(2, "<vision_begin>"), added(3, "<unused>")]
    )
    ours = Speller(write(tmp_path / "student", student, {"eos_token": "<|im_end|>"}))
    theirs = Speller(write(tmp_path / "teacher", teacher, {"eos_token": "<end_of_turn>"}))
    cells, pairs = special_cells(ours.vocabulary, theirs.vocabulary)
    assert pairs == {1: 1}
    found = dict(
        zip(zip(cells.student.tolist(), cells.teacher.tolist(), strict=True), cells.weights, strict=True)
    )
    assert found[1, 1] == 1.0
    ratio = difflib.SequenceMatcher(None, "<vision_begin>", "<|vision_start|>", autojunk=False).ratio()
    # One word of three in common.
    assert found[2, 2] == pytest.approx(0.8 * (0.6 * ratio + 0.4 / 3))
    rows = build(ours, theirs, BuildOptions())
    assert rows.indices[1].tolist() == [1, NO_ID, NO_ID, NO_ID]
    assert rows.indices[2, 0] == 2
    nothing = build(ours, theirs, BuildOptions(special_tokens=False))
    assert (nothing.indices[1:] == NO_ID).all()
    assert (nothing.weights[1:] == 0).all()


def test_numbered_fillers_map_to_nothing(tmp_path: Path) -> None:
    fillers = [added(number, f"<|reserved_{number}|>") for number in range(1, 9)]
    student = Speller(write(tmp_path / "student", letters(["a"], added_tokens=fillers)))
    named = [added(1, "<|reserved_word|>")]
    teacher = Speller(write(tmp_path / "teacher", letters(["a"], added_tokens=named)))
    cells, pairs = special_cells(student.vocabulary, teacher.vocabulary)
    assert len(cells.student) == 0
    assert pairs == {}


def test_the_unknown_token_stands_for_no_other(speller: SpellerOf) -> None:
    cells, pairs = special_cells(speller("llama_like").vocabulary, speller("unigram_always").vocabulary)
    unknown = speller("llama_like").vocabulary.roles["unk"]
    assert unknown not in cells.student.tolist()
    assert unknown not in pairs


def test_the_same_tokenizers_make_the_same_rows(speller: SpellerOf) -> None:
    first, second = (build(speller("byte_level"), speller("gemma_like"), BuildOptions()) for _ in range(2))
    assert np.array_equal(first.indices, second.indices)
    assert np.array_equal(first.weights, second.weights)


def test_real_vocabularies_are_projected_with_most_rows_exact(
    real_speller: SpellerOf, real_splits: Callable[[str, str], Splits]
) -> None:
    student, teacher = real_speller("llama3_1"), real_speller("qwen3")
    there, back = real_splits("llama3_1", "qwen3"), real_splits("qwen3", "llama3_1")
    rows = build_of(student, teacher, there, back, BuildOptions())
    text = student.vocabulary.kinds == TEXT
    assert rows.weights[text].sum(axis=1) == pytest.approx(1.0)
    # Counted here from the bytes alone.
    known = {part for part, kind in zip(teacher.parts, teacher.vocabulary.kinds, strict=True) if kind == TEXT}
    shared = sum(part in known for part, is_text in zip(student.parts, text, strict=True) if is_text)
    exact = (rows.weights[text, 0] == 1) & (rows.indices[text, 1] == NO_ID)
    assert exact.sum() >= shared > 100_000
    number = student.by_bytes[b"201"]
    assert [teacher.parts[other] for other in rows.indices[number] if other != NO_ID] == [b"2", b"0", b"1"]
    assert rows.weights[number, :3] == pytest.approx([1 / 1.11, 0.1 / 1.11, 0.01 / 1.11])


def test_pieces_of_the_byte_fallback_are_exact(tmp_path: Path, speller: SpellerOf) -> None:
    level, llama = speller("byte_level"), speller("llama_like")
    rows = build(level, llama, BuildOptions())
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        found = rows.indices[level.by_bytes[bytes([byte])], 0]
        assert llama.parts[found] == bytes([byte])
    assert len(BYTE_PIECES) == 256
    assert SIGN.encode() not in llama.parts

"""Runs: equal symbols in the same order, as much of them as there is, and never what only looks equal."""

from __future__ import annotations

import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.align.anchors import chained
from atroposlib.align.runs import Runs, equal_runs
from atroposlib.align.stretches import Ints

WORDS = (
    *("the", "river", "rose", "123", "x=1;", "\n", "überall,", "naïve", "façade", "déjà", "vu", "Tôi"),
    *("không", "biết", "한국어", "문장도", "góra"),
)


def symbols(text: bytes | list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(list(text), dtype=np.int32)


def found(student: bytes | list[int], teacher: bytes | list[int]) -> list[tuple[int, int, int]]:
    """The runs, after a look at what every result must be: equal, in order on both sides, not empty."""
    runs = equal_runs(symbols(student), symbols(teacher))
    told = list(zip(runs.student.tolist(), runs.teacher.tolist(), runs.lengths.tolist(), strict=True))
    here = there = 0
    for begin, other, length in told:
        assert length > 0
        assert begin >= here
        assert other >= there
        assert student[begin : begin + length] == teacher[other : other + length]
        here, there = begin + length, other + length
    assert here <= len(student)
    assert there <= len(teacher)
    return told


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A text, and one made of it by a few edits."""
    alphabet = draw(st.sampled_from([b"ab", b"abcdefgh ", "aé한 ".encode(), bytes(range(256))]))
    text = bytes(draw(st.lists(st.sampled_from(list(alphabet)), max_size=120)))
    other = bytearray(text)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(other)))
        other[at : at + draw(st.integers(0, 5))] = draw(st.binary(max_size=5))
    return text, bytes(other)


@given(edited())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_runs_are_equal_and_in_order_on_both_sides(pair: tuple[bytes, bytes]) -> None:
    one, other = pair
    assert found(one, other) == [(here, there, length) for there, here, length in found(other, one)]


@given(edited())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_equal_streams_are_one_run(pair: tuple[bytes, bytes]) -> None:
    assert found(pair[0], pair[0]) == ([(0, 0, len(pair[0]))] if pair[0] else [])


def test_head_and_tail_are_found_around_one_change() -> None:
    assert found(b"one two three", b"one 2 three") == [(0, 0, 4), (7, 5, 6)]
    assert found(b"three", b"one three") == [(0, 4, 5)]
    assert found(b"", b"one") == []


def test_a_long_equal_part_between_two_changes_is_found() -> None:
    middle = b"there is more than enough in here"
    assert (1, 2, len(middle)) in found(b"A" + middle + b"B", b"CD" + middle + b"EFG")


def test_a_short_equal_part_is_found_in_a_small_gap() -> None:
    assert found("ąsomeę".encode(), "èsomeò".encode()) == [(2, 2, 4)]


def test_a_repeated_part_is_found_where_both_have_it_as_often() -> None:
    one = b"".join(b"%d: again and again and again. " % number for number in range(50))
    covered = sum(
        length for _, _, length in found(b"<" + one + b"x>", b"(" + one.replace(b"49", b"99") + b")")
    )
    assert covered >= len(one) - 4


def test_the_first_bytes_of_two_characters_are_no_run() -> None:
    # Both begin with C3, and both end with A9.
    assert found("é".encode(), "è".encode()) == []
    assert found("aéb".encode(), "aÃ\u00e8b".encode()) == [(0, 0, 1), (3, 5, 1)]
    assert found("é".encode(), "㉩".encode()) == []


def test_a_character_that_was_cut_off_is_no_run() -> None:
    assert found("a한".encode()[:-1], "a한".encode()) == [(0, 0, 1)]


def test_bytes_that_are_no_text_are_kept_where_all_is_equal() -> None:
    assert found(b"\xed\x95", b"\xed\x95") == [(0, 0, 2)]


def test_moved_parts_keep_the_larger_one() -> None:
    large, small = b"a large part that stays as it was. ", b"a small one! moved "
    runs = found(b"<" + large + small + b">", b"(" + small + large + b")")
    assert (1, 1 + len(small), len(large)) in runs


def test_of_pieces_that_cross_the_heaviest_chain_is_kept() -> None:
    draw = np.random.default_rng(6)
    for _ in range(50):
        count = int(draw.integers(1, 9))
        lengths = draw.integers(1, 9, count)
        # Far apart, so that nothing overlaps.
        student: Ints = np.arange(count) * 100
        teacher = draw.permutation(count) * 100
        kept = chained((student, teacher, lengths))
        heaviest = max(
            sum(int(lengths[index]) for index in chosen)
            for bits in range(1, 1 << count)
            if (chosen := [index for index in range(count) if bits >> index & 1])
            and all(np.diff(teacher[chosen]) > 0)
        )
        assert int(kept[2].sum()) == heaviest
        assert (np.diff(kept[1]) > 0).all()


def clusters(text: str) -> list[str]:
    """Characters with the marks that compose with them."""
    parts: list[str] = []
    for character in text:
        joins = unicodedata.combining(character) or 0x1160 <= ord(character) < 0x1200
        if parts and joins:
            parts[-1] += character
        else:
            parts.append(character)
    return parts


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [5, 60, 900])
def test_composed_text_is_put_beside_what_it_was_made_of(count: int, seed: int) -> None:
    """Where each byte has to go is known, because the text is composed character by character here."""
    draw = random.Random(seed)
    text = " ".join(draw.choice(WORDS) for _ in range(count))
    decomposed = unicodedata.normalize("NFD", text)
    place_of, possible, there = [], 0, 0
    for part in clusters(decomposed):
        before, after = part.encode(), unicodedata.normalize("NFC", part).encode()
        same = before == after
        possible += len(before) if same else 0
        place_of += [there + index if same else -1 for index in range(len(before))]
        there += len(after)
    runs = found(decomposed.encode(), unicodedata.normalize("NFC", decomposed).encode())
    covered = 0
    for begin, other, length in runs:
        assert place_of[begin : begin + length] == list(range(other, other + length))
        covered += length
    assert covered >= 0.7 * possible


def test_markers_of_one_side_alone_are_never_equal() -> None:
    lone, theirs, shared = -2, -3, 256
    assert found([lone, 65, shared, 66], [theirs, 65, shared, 66]) == [(1, 1, 3)]


def test_the_type_is_the_one_that_callers_build() -> None:
    runs = equal_runs(symbols(b"ab"), symbols(b"ab"))
    assert isinstance(runs, Runs)
    assert len(runs) == 1


def test_short_text_between_markers_of_one_side_is_found() -> None:
    lone, theirs = -2, -3
    text = [*b"ab", lone, *b"cd", lone, lone, *b"e"]
    assert found(text, [theirs, *b"abcde"]) == [(0, 1, 2), (3, 3, 2), (7, 5, 1)]
    assert found([*b"abcd", lone], [*b"ab", theirs, *b"cd"]) == [(0, 0, 2), (2, 3, 2)]


@given(edited(), st.lists(st.integers(0, 120), max_size=5), st.lists(st.integers(0, 120), max_size=5))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_markers_of_one_side_cut_runs_and_change_nothing_else(
    pair: tuple[bytes, bytes], ours: list[int], theirs: list[int]
) -> None:
    marked = [list(pair[0]), list(pair[1])]
    for stream, places, lone in zip(marked, (ours, theirs), (-2, -3), strict=True):
        for place in places:
            stream.insert(min(place, len(stream)), lone)
    covered = [length for _, _, length in found(*marked)]
    assert sum(covered) == sum(length for _, _, length in found(*pair))

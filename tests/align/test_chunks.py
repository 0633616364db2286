"""Chunks against chunks found by sets, on small tokenizers of every family and any cut of a text."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.chunks import NO_CHUNK, Alignment
from atroposlib.align.vocabulary import Vocabulary, read_vocabulary
from tests.support.segmentations import Cutter, chunks_by_sets
from tests.support.tokenizer_files import FAMILIES, write

TEXTS = st.text(alphabet=" abthé\n", min_size=1, max_size=24)
WHOLE = ["byte_level", "byte_level_prefix", "llama_like", "gemma_like"]
"""Families that have a token for every byte."""


@functools.cache
def cutter(family: str) -> Cutter:
    with tempfile.TemporaryDirectory() as scratch:
        directory = write(Path(scratch) / family, FAMILIES[family], {"bos_token": "<s>", "eos_token": "</s>"})
        return Cutter(read_vocabulary(directory, cache_dir=Path(scratch)))


@functools.cache
def aligner(student: str, teacher: str) -> TokenAligner:
    return TokenAligner(cutter(student).vocabulary, cutter(teacher).vocabulary)


def told(alignment: Alignment) -> tuple[list[int], list[int]]:
    return alignment.student_chunk_id.tolist(), alignment.teacher_chunk_id.tolist()


def bytes_of(vocabulary: Vocabulary, ids: list[int], chunk_id: list[int], chunk: int) -> bytes:
    """What the tokens of a chunk are together, by the lengths within the whole text."""
    ends = np.cumsum(vocabulary.lengths(ids)).tolist()
    inside = [index for index, number in enumerate(chunk_id) if number == chunk]
    begin = ends[inside[0] - 1] if inside[0] else 0
    return vocabulary.text(ids)[begin : ends[inside[-1]]]


@given(TEXTS, st.sampled_from(WHOLE), st.sampled_from(WHOLE), st.integers(0, 2**31), st.integers(0, 2**31))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_two_cuts_of_one_text_have_the_chunks_that_sets_find(
    text: str, student: str, teacher: str, seed: int, other_seed: int
) -> None:
    ours, theirs = cutter(student).cut(text.encode(), seed), cutter(teacher).cut(text.encode(), other_seed)
    assert ours is not None
    assert theirs is not None
    assert cutter(student).vocabulary.text(ours) == cutter(teacher).vocabulary.text(theirs) == text.encode()
    lengths = cutter(student).vocabulary.lengths(ours), cutter(teacher).vocabulary.lengths(theirs)
    alignment = aligner(student, teacher).align_ids(ours, theirs)
    assert told(alignment) == chunks_by_sets(lengths[0].tolist(), lengths[1].tolist())
    assert alignment.valid.all()


@given(TEXTS, st.sampled_from(WHOLE), st.sampled_from(WHOLE), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_other_way_round_is_the_same(text: str, student: str, teacher: str, seed: int) -> None:
    ours, theirs = cutter(student).cut(text.encode(), seed), cutter(teacher).cut(text.encode(), seed + 1)
    assert ours is not None
    assert theirs is not None
    one = aligner(student, teacher).align_ids(ours, theirs)
    other = aligner(teacher, student).align_ids(theirs, ours)
    assert told(one) == told(other)[::-1]
    assert one.valid.tolist() == other.valid.tolist()


@given(TEXTS, st.sampled_from(WHOLE), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_one_tokenizer_is_one_to_one(text: str, family: str, seed: int) -> None:
    ids = cutter(family).cut(text.encode(), seed)
    assert ids is not None
    # A space that was put in by itself goes with the token after it.
    assume(cutter(family).vocabulary.lengths(ids).all())
    alignment = aligner(family, family).align_ids(ids, ids)
    assert told(alignment) == (list(range(len(ids))), list(range(len(ids))))
    assert alignment.exact().all()


@given(TEXTS, st.sampled_from(WHOLE), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_student_of_single_bytes_has_a_chunk_for_every_token_of_the_teacher(
    text: str, teacher: str, seed: int
) -> None:
    theirs = cutter(teacher).cut(text.encode(), seed)
    assert theirs is not None
    single = [3 + byte for byte in text.encode()]
    assume(cutter(teacher).vocabulary.lengths(theirs).all())
    # Gemma's way puts no space in and has a token for each byte.
    alignment = aligner("gemma_like", teacher).align_ids(single, theirs)
    assert told(alignment)[1] == list(range(len(theirs)))


@given(TEXTS, TEXTS, st.sampled_from(WHOLE), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_texts_behind_a_shared_marker_are_aligned_by_themselves(
    text: str, other: str, teacher: str, seed: int
) -> None:
    """The student here puts no space in, so that ids behind a marker are what they are at the begin."""
    assume(cutter(teacher).vocabulary.prefix == "none")
    both = aligner("gemma_like", teacher)
    ours = [cutter("gemma_like").cut(part.encode(), seed) for part in (text, other)]
    theirs = [cutter(teacher).cut(part.encode(), seed + 1) for part in (text, other)]
    assert None not in ours + theirs
    marker = 1 if teacher == "gemma_like" else 259
    joined = TokenAligner(with_bos(both.student, 1), with_bos(both.teacher, marker))
    whole = joined.align_ids([*ours[0], 1, *ours[1]], [*theirs[0], marker, *theirs[1]])
    first, second = both.align_ids(ours[0], theirs[0]), both.align_ids(ours[1], theirs[1])
    shift = len(first) + 1
    assert told(whole) == (
        [*told(first)[0], len(first), *(number + shift for number in told(second)[0])],
        [*told(first)[1], len(first), *(number + shift for number in told(second)[1])],
    )


def with_bos(vocabulary: Vocabulary, number: int) -> Vocabulary:
    """The vocabulary with one more role, so that its marker pairs whatever it is called."""
    arrays = {name: getattr(vocabulary, name) for name in ("blob", "offsets", "kinds", "cuts", "prefix")}
    return Vocabulary(**arrays, roles={"bos": number}, names=vocabulary.names, lossy=vocabulary.lossy)


@given(TEXTS, st.sampled_from(WHOLE), st.sampled_from(WHOLE), st.integers(0, 2**31), st.integers(0, 30))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_cut_off_text_has_a_prefix_of_the_chunks(
    text: str, student: str, teacher: str, seed: int, kept: int
) -> None:
    ours, theirs = cutter(student).cut(text.encode(), seed), cutter(teacher).cut(text.encode(), seed + 1)
    assert ours is not None
    assert theirs is not None
    whole = told(aligner(student, teacher).align_ids(ours, theirs))
    cut = told(aligner(student, teacher).align_ids(ours[:kept], theirs))
    for one, other in zip(whole, cut, strict=True):
        for before, after in zip(one, other, strict=False):
            assert after in (before, NO_CHUNK)
    # A chunk is kept unless the cut goes through it or through its last character.
    last = whole[0][kept - 1] if 0 < kept <= len(ours) else None
    untouched = [number for number in whole[0][:kept] if last is None or number < last - 3]
    assert cut[0][: len(untouched)] == untouched


@given(st.lists(st.integers(-2, 300), max_size=30), st.lists(st.integers(-2, 300), max_size=30))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_whatever_the_ids_chunks_are_dense_and_of_equal_bytes(ours: list[int], theirs: list[int]) -> None:
    both = aligner("byte_level", "llama_like")
    alignment = both.align_ids(ours, theirs)
    student, teacher = told(alignment)
    assert {*student, *teacher} - {NO_CHUNK} == set(range(len(alignment)))
    for chunk_id in (student, teacher):
        inside = [number for number in chunk_id if number != NO_CHUNK]
        assert inside == sorted(inside)
    for chunk in np.flatnonzero(alignment.valid).tolist():
        one = bytes_of(both.student, ours, student, chunk)
        assert one == bytes_of(both.teacher, theirs, teacher, chunk)


@given(TEXTS, st.sampled_from(WHOLE), st.sampled_from(WHOLE), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_surprisals_over_chunks_are_those_over_tokens(
    text: str, student: str, teacher: str, seed: int
) -> None:
    ours, theirs = cutter(student).cut(text.encode(), seed), cutter(teacher).cut(text.encode(), seed + 1)
    assert ours is not None
    assert theirs is not None
    alignment = aligner(student, teacher).align_ids(ours, theirs)
    draw = np.random.default_rng(seed)
    for chunk_id in (alignment.student_chunk_id, alignment.teacher_chunk_id):
        surprisals = draw.exponential(size=len(chunk_id))
        sums = np.bincount(chunk_id, weights=surprisals, minlength=len(alignment))
        assert sums.sum() == pytest.approx(surprisals.sum())


@pytest.mark.parametrize("student", sorted(FAMILIES))
@pytest.mark.parametrize("teacher", sorted(FAMILIES))
def test_what_the_library_encodes_is_covered_wherever_both_keep_the_text(student: str, teacher: str) -> None:
    """Unknown text, and white space that WordPiece drops, is in no chunk; nothing else is lost."""
    text = "ab th aab b a"
    ids = [
        Tokenizer.from_str(json.dumps(FAMILIES[family])).encode(text, add_special_tokens=False).ids
        for family in (student, teacher)
    ]
    alignment = aligner(student, teacher).align_ids(*ids)
    kept = [
        cutter(family).vocabulary.text(each) for family, each in zip((student, teacher), ids, strict=True)
    ]
    if kept[0] == kept[1] == text.encode():
        assert NO_CHUNK not in alignment.student_chunk_id
        assert NO_CHUNK not in alignment.teacher_chunk_id
    unknown = [cutter(family).vocabulary.roles.get("unk") for family in (student, teacher)]
    for chunk_id, each, number in zip(told(alignment), ids, unknown, strict=True):
        assert all(chunk == NO_CHUNK for chunk, token in zip(chunk_id, each, strict=True) if token == number)


def test_nothing_beside_nothing_is_no_chunk() -> None:
    alignment = aligner("byte_level", "llama_like").align_ids([], [])
    assert len(alignment) == 0
    assert told(alignment) == ([], [])


def test_text_beside_nothing_is_in_no_chunk() -> None:
    assert told(aligner("byte_level", "llama_like").align_ids([97, 98], [])) == ([-1, -1], [])


def test_a_put_in_space_of_its_own_goes_with_the_token_after_it() -> None:
    both = aligner("llama_like", "byte_level")
    sign, letter = 259, 260
    assert both.student.bytes_of(sign) == b" "
    assert both.student.bytes_of(letter) == b"a"
    assert told(both.align_ids([sign, letter], [97])) == ([0, 0], [0])

"""Explanations: every token once and in order, paired, alone or masked, and why."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.explanation import ExplainedChunk
from atroposlib.align.vocabulary import read_vocabulary
from tests.support.tokenizer_files import byte_level, llama_like, write


@functools.cache
def made() -> TokenAligner:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        ours = write(place / "student", byte_level())
        theirs = write(place / "teacher", llama_like(), {"bos_token": "<s>", "unk_token": "<unk>"})
        return TokenAligner(read_vocabulary(ours, cache_dir=place), read_vocabulary(theirs, cache_dir=place))


@pytest.fixture
def aligner() -> TokenAligner:
    return made()


def test_pairs_markers_and_masked_text_are_told_apart(aligner: TokenAligner) -> None:
    # <s>, a put-in space and "a", "bbb"; then Y where the student has X; then "bbba"; then no known text.
    b, y = 261, 3 + 0x59
    told = aligner.explain([*b"abbbXbbba", 259], [1, 262, b, b, b, y, b, b, b, 260, 0])
    pairs = {letter: ExplainedChunk((letter,), (letter,), "paired") for letter in (b"a", b"b")}
    assert told == [
        ExplainedChunk((), ("<s>",), "alone", "lone_marker"),
        pairs[b"a"],
        *[pairs[b"b"]] * 3,
        ExplainedChunk((b"X",), (b"Y",), "masked", "not_equal"),
        *[pairs[b"b"]] * 3,
        pairs[b"a"],
        ExplainedChunk(("<|end|>",), ("<unk>",), "masked", "unknown"),
    ]


def test_ids_outside_the_table_are_told_as_unknown(aligner: TokenAligner) -> None:
    assert aligner.explain([10_000], []) == [ExplainedChunk((b"",), (), "masked", "unknown")]


def test_nothing_is_explained_by_nothing(aligner: TokenAligner) -> None:
    assert aligner.explain([], []) == []


@given(st.lists(st.integers(-1, 265), max_size=25), st.lists(st.integers(-1, 270), max_size=25))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_every_token_stands_there_once_and_in_order(ours: list[int], theirs: list[int]) -> None:
    aligner = made()
    told = aligner.explain(ours, theirs)
    for side, vocabulary, ids in (("student", aligner.student, ours), ("teacher", aligner.teacher, theirs)):
        tokens = [token for chunk in told for token in getattr(chunk, side)]
        assert len(tokens) == len(ids)
        spaces = set(vocabulary.put_in_spaces(np.array(ids, dtype=np.int64)).tolist())
        for place, (number, token) in enumerate(zip(ids, tokens, strict=True)):
            expected = vocabulary.names.get(number, vocabulary.bytes_of(number))
            assert token == (expected[1:] if place in spaces else expected)
    for chunk in told:
        if (
            chunk.state == "paired"
            and isinstance(chunk.student[0], bytes)
            and isinstance(chunk.teacher[0], bytes)
        ):
            assert b"".join(chunk.student) == b"".join(chunk.teacher)
        assert bool(chunk.reason) == (chunk.state != "paired")


def test_figures_count_bytes_and_tokens(aligner: TokenAligner) -> None:
    found = aligner.coverage([*b"aXb", 257], [262, 3 + 0x59, 261, 259, 3 + 0x74, 3 + 0x68])
    assert (found.student_tokens, found.teacher_tokens) == (4, 6)
    # " th" is one token here and three there, and the space before "a" was put in.
    assert (found.student_bytes, found.teacher_bytes, found.chunks) == (6, 6, 3)
    assert found.student_share == found.teacher_share == pytest.approx(5 / 6)
    assert found.tokens_a_chunk == 1.0
    assert found.exact_share == pytest.approx(2 / 3)


def test_no_text_is_wholly_covered(aligner: TokenAligner) -> None:
    found = aligner.coverage([], [])
    assert (found.student_share, found.chunks, found.tokens_a_chunk, found.exact_share) == (1.0, 0, 0.0, 0.0)

"""Alignment of real tokenizers: any two of them, any text, and any cut of it."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.chunks import NO_CHUNK
from tests.support.real_tokenizers import byte_table, library, real_tokenizers
from tests.support.segmentations import Cutter, chunks_by_sets

HERE = sorted(real_tokenizers())
NORMALISING = {"aya_expanse", "claude", "j2_unigram", "j2_unigram_nobf", "qwen3"}
"""They change some text, so that its bytes are not those of the other side."""
LOSSLESS = sorted(set(HERE) - NORMALISING)

# Some vocabularies have a sign that stands for a space, and SmolLM2's lacks some control characters.
CHARACTERS = st.characters(exclude_categories=("Cs", "Cn", "Co", "Cc"), exclude_characters="\u2581")
WRITTEN = st.one_of(
    st.text(CHARACTERS, min_size=1, max_size=30),
    st.text("abc de 0123,.\n\t (){}", min_size=1, max_size=60),
    st.text("👩‍👧🇫🇷👍🏽é한国", min_size=1, max_size=20),
)

pytestmark = pytest.mark.skipif(len(LOSSLESS) < 2, reason="fewer than two real tokenizers are here")


@functools.cache
def aligner(student: str, teacher: str) -> TokenAligner:
    return TokenAligner(byte_table(student), byte_table(teacher))


@functools.cache
def cutter(name: str) -> Cutter:
    return Cutter(byte_table(name))


def encoded(name: str, text: str) -> list[int]:
    ids: list[int] = library(name).encode(text, add_special_tokens=False).ids
    return ids


def pairs(names: list[str]) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(st.sampled_from(names or [""]), st.sampled_from(names or [""]))


def lengths(name: str, ids: list[int]) -> list[int]:
    found: list[int] = byte_table(name).lengths(ids).tolist()
    return found


@given(WRITTEN, pairs(LOSSLESS))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_lossless_tokenizers_have_the_chunks_that_sets_find(text: str, pair: tuple[str, str]) -> None:
    # Text that is spelt like a special token becomes one, which is for the encoder to see to.
    ours, theirs = encoded(pair[0], text), encoded(pair[1], text)
    assert byte_table(pair[0]).text(ours) == byte_table(pair[1]).text(theirs) == text.encode()
    alignment = aligner(*pair).align_ids(ours, theirs)
    expected = chunks_by_sets(lengths(pair[0], ours), lengths(pair[1], theirs))
    assert (alignment.student_chunk_id.tolist(), alignment.teacher_chunk_id.tolist()) == expected
    assert alignment.valid.all()


@given(WRITTEN, pairs(HERE), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_cut_of_a_text_beside_any_other(text: str, pair: tuple[str, str], seed: int) -> None:
    ours, theirs = cutter(pair[0]).cut(text.encode(), seed), cutter(pair[1]).cut(text.encode(), seed + 1)
    if ours is None or theirs is None:
        # One of the families here has no byte pieces.
        assert "j2_unigram_nobf" in pair
        return
    alignment = aligner(*pair).align_ids(ours, theirs)
    expected = chunks_by_sets(lengths(pair[0], ours), lengths(pair[1], theirs))
    assert (alignment.student_chunk_id.tolist(), alignment.teacher_chunk_id.tolist()) == expected


def spans(name: str, ids: list[int], chunk_id: list[int], chunk: int) -> bytes:
    ends = np.cumsum(lengths(name, ids)).tolist()
    inside = [index for index, number in enumerate(chunk_id) if number == chunk]
    begin = ends[inside[0] - 1] if inside[0] else 0
    return byte_table(name).text(ids)[begin : ends[inside[-1]]]


@given(st.one_of(WRITTEN, st.text("éàüñ e\u0301u\u0308ﬁ①Ａ…한한\n", min_size=1, max_size=40)), pairs(HERE))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_chunk_is_wrong_where_text_is_lost(text: str, pair: tuple[str, str]) -> None:
    ours, theirs = encoded(pair[0], text), encoded(pair[1], text)
    alignment = aligner(*pair).align_ids(ours, theirs)
    student, teacher = alignment.student_chunk_id.tolist(), alignment.teacher_chunk_id.tolist()
    assert {*student, *teacher} - {NO_CHUNK} == set(range(len(alignment)))
    for chunk in np.flatnonzero(alignment.valid).tolist():
        assert spans(pair[0], ours, student, chunk) == spans(pair[1], theirs, teacher, chunk)


@pytest.mark.parametrize("name", [name for name in HERE if name not in ("qwen3", "j2_unigram_nobf")])
def test_decomposed_text_costs_only_what_is_composed(name: str) -> None:
    """Qwen composes; what stands between the composed characters is still paired."""
    if "qwen3" not in HERE:
        pytest.skip("the tokenizer qwen3 is not here")
    text = (
        "The cafe\u0301 on the corner was closed. Nobody knew why the owner, nai\u0308ve as ever, had left. "
        * 4
    )
    ours, theirs = encoded(name, text), encoded("qwen3", text)
    covered = aligner(name, "qwen3").coverage(ours, theirs)
    # The other normalising tokenizers compose as well, and then all is equal.
    assert covered.student_share > 0.8
    assert (covered.student_share == 1.0) == (name in NORMALISING)


@pytest.mark.parametrize("name", HERE)
def test_one_tokenizer_beside_itself_is_one_to_one(name: str) -> None:
    draw = random.Random(6)
    table = byte_table(name)
    ids = [draw.randrange(len(table)) for _ in range(3000)]
    # What stands for nothing known is not known to be equal.
    known = [number for number in ids if number in table.names or table.bytes_of(number)]
    known = [number for number in known if number != table.roles.get("unk")]
    alignment = aligner(name, name).align_ids(known, known)
    kept = table.lengths(known) > 0
    special = np.array([number in table.names for number in known])
    assert alignment.exact()[alignment.student_chunk_id[kept | special]].all()


@given(st.lists(WRITTEN, min_size=1, max_size=4), pairs(HERE), st.integers(0, 2**31))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_company_order_and_padding_change_nothing(texts: list[str], pair: tuple[str, str], seed: int) -> None:
    both, draw = aligner(*pair), random.Random(seed)
    ours, theirs = ([encoded(name, text) for text in texts] for name in pair)
    student, student_mask = padded(ours, draw)
    teacher, teacher_mask = padded(theirs, draw)
    batch = both.align(
        student, teacher, student_attention_mask=student_mask, teacher_attention_mask=teacher_mask
    )
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        alone, count = both.align_ids(one, other), int(batch.num_chunks[index])
        assert batch.pair_valid[index, :count].tolist() == alone.valid.tolist()
        assert not batch.pair_valid[index, count:].any()
        for chunk_id, mask, expected in (
            (batch.student_chunk_id, student_mask, alone.student_chunk_id),
            (batch.teacher_chunk_id, teacher_mask, alone.teacher_chunk_id),
        ):
            kept = np.array(mask[index]) == 1
            assert chunk_id[index][kept].tolist() == expected.tolist()
            assert (chunk_id[index][~kept] == NO_CHUNK).all()


def padded(rows: list[list[int]], draw: random.Random) -> tuple[list[list[int]], list[list[int]]]:
    """The rows with ids of no meaning on either side, and their mask."""
    width = max(map(len, rows)) + draw.randrange(4)
    ids, mask = [], []
    for row in rows:
        left = draw.randint(0, width - len(row))
        right = width - len(row) - left
        ids.append([7] * left + row + [7] * right)
        mask.append([0] * left + [1] * len(row) + [0] * right)
    return ids, mask

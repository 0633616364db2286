"""Safe pairs of bytes, against the vocabularies' own tokens, and what they promise of any tokenization."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.align.tables.table import TEXT, Vocabulary
from atroposlib.projection.bigrams import safe_bigrams
from atroposlib.projection.speller import Speller
from tests.support.real_tokenizers import byte_table, real_tokenizers
from tests.support.tokenizer_files import FAMILIES

PAIRS = [("smollm2", "qwen3"), ("llama3_1", "deepseek_v3"), ("mistral_v1", "gptoss")]


@functools.cache
def real(name: str) -> tuple[Vocabulary, list[int], dict[bytes, int]]:
    """A real vocabulary, its ids of text, and an id of each byte string."""
    vocabulary = byte_table(name)
    ids = np.flatnonzero(vocabulary.kinds == TEXT).tolist()
    return vocabulary, ids, {vocabulary.bytes_of(number): number for number in ids}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_pair_is_safe_when_no_token_holds_it(family: str, speller: Callable[[str], Speller]) -> None:
    vocabulary = speller(family).vocabulary
    held = {
        (first, second)
        for number in range(len(vocabulary))
        for first, second in zip(vocabulary.bytes_of(number), vocabulary.bytes_of(number)[1:], strict=False)
    }
    safe = safe_bigrams(vocabulary)
    assert {(first, second) for first, second in np.argwhere(~safe).tolist()} == held
    assert safe.shape == (256, 256)


def test_a_pair_of_vocabularies_is_safe_where_both_are(speller: Callable[[str], Speller]) -> None:
    ours, theirs = speller("byte_level").vocabulary, speller("llama_like").vocabulary
    assert np.array_equal(safe_bigrams(ours, theirs), safe_bigrams(ours) & safe_bigrams(theirs))
    assert safe_bigrams().all()


def test_markers_forbid_nothing(speller: Callable[[str], Speller]) -> None:
    safe = safe_bigrams(speller("llama_like").vocabulary)
    assert safe[ord("<"), ord("s")]
    assert not safe[ord("a"), ord("b")]


def boundaries(vocabulary: Vocabulary, ids: list[int]) -> set[int]:
    return set(np.cumsum(vocabulary.lengths(ids)).tolist())


def written_at_random(text: bytes, by_bytes: dict[bytes, int], draw: random.Random) -> list[int]:
    """Some tokens that spell the text, chosen without regard to how the tokenizer would."""
    ids, at = [], 0
    while at < len(text):
        ends = [end for end in range(at + 1, min(len(text), at + 32) + 1) if text[at:end] in by_bytes]
        end = draw.choice(ends)
        ids.append(by_bytes[text[at:end]])
        at = end
    return ids


@pytest.mark.parametrize(("student", "teacher"), PAIRS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_tokenization_of_both_sides_ends_a_token_at_every_safe_pair(
    student: str, teacher: str, data: st.DataObject
) -> None:
    if absent := {student, teacher} - set(real_tokenizers()):
        pytest.skip(f"not here: {', '.join(sorted(absent))}")
    (ours, our_ids, _), (theirs, _, by_bytes) = real(student), real(teacher)
    ids = data.draw(st.lists(st.sampled_from(our_ids), min_size=2, max_size=30))
    text = ours.text(ids)
    safe = safe_bigrams(ours, theirs)
    cuts = {at for at in range(1, len(text)) if safe[text[at - 1], text[at]]}
    assert cuts <= set(np.cumsum(ours.lengths(ids)).tolist())
    other = written_at_random(text, by_bytes, random.Random(data.draw(st.integers(0, 1000))))
    assert b"".join(theirs.bytes_of(number) for number in other) == text
    assert cuts <= set(np.cumsum([len(theirs.bytes_of(number)) for number in other]).tolist())


def test_a_space_after_a_letter_is_mostly_safe_in_real_vocabularies() -> None:
    """The rule would be worthless if it forbade the pairs that texts consist of."""
    if absent := {"smollm2", "qwen3"} - set(real_tokenizers()):
        pytest.skip(f"not here: {', '.join(sorted(absent))}")
    safe = safe_bigrams(real("smollm2")[0], real("qwen3")[0])
    letters = range(ord("a"), ord("z") + 1)
    assert sum(bool(safe[letter, ord(" ")]) for letter in letters) >= 20
    assert not any(safe[ord(" "), letter] for letter in letters)

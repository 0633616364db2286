"""Whatever a conversation says, chunks are equal bytes of its last answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atroposlib.align.aligner import TokenAligner
from tests.support.collators import collator, pair, real_collator, row

PARTS = (
    *("ab", " ", "\n", "\t", "naïve", "日本", "👩\u200d👩\u200d👧", "{{", "a" * 9),
    *("<|im_end|>", "<|im_start|>user\n", "</s>", "<bos>"),
)
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), min_size=1, max_size=12).map("".join)
# Blank answers are refused, and a lone surrogate is no text.
ANSWERS = TEXTS.map(lambda text: f"{text.encode('utf-8', 'ignore').decode()}.")


def check(build: Any, aligner: TokenAligner, messages: list[str], *, trims: bool) -> None:
    """Compare a batch of one conversation with the byte tables and with the answer's own bytes."""
    batch = build([row(*messages)])
    answer = messages[-1].encode()
    sides = (("", "student", aligner.student), ("teacher_0_", "teacher", aligner.teacher))
    spelled: list[dict[int, bytes]] = []
    for prefix, name, vocabulary in sides:
        ids = batch[f"{prefix}input_ids"][0].tolist()
        chunks = batch[f"alignment_0_{name}_chunk_id"][0].tolist()
        mask = batch[f"{prefix}token_mask"][0].tolist()
        supervised = b"".join(vocabulary.bytes_of(one) for one, kept in zip(ids, mask, strict=True) if kept)
        if not trims and not vocabulary.lossy:
            assert supervised == answer
        found: dict[int, bytes] = {}
        for one, chunk, kept in zip(ids, chunks, mask, strict=True):
            assert kept or chunk == -1
            if chunk >= 0:
                found[chunk] = found.get(chunk, b"") + vocabulary.bytes_of(one)
        assert list(found) == sorted(found)
        spelled.append(found)
    valid = np.flatnonzero(batch["alignment_0_pair_valid"][0].numpy()).tolist()
    assert [spelled[0][chunk] for chunk in valid] == [spelled[1][chunk] for chunk in valid]
    if not trims and not aligner.student.lossy and not aligner.teacher.lossy:
        assert b"".join(spelled[0].values()) == answer


@given(st.tuples(ANSWERS, ANSWERS, ANSWERS, ANSWERS))
@example(("", "", "", "ab<|im_end|>ab."))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_small_tokenizers(small_collator: Any, messages: tuple[str, ...]) -> None:
    check(*small_collator, list(messages), trims=False)


@pytest.mark.parametrize(
    ("student", "teacher", "trims"), [("smollm2", "qwen3", False), ("llama3_1", "gemma3", True)]
)
@given(st.tuples(ANSWERS, ANSWERS))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_real_templates(student: str, teacher: str, trims: bool, messages: tuple[str, ...]) -> None:
    build = real_collator(student, teacher, mode="chat")
    check(build, pair(student, teacher), list(messages), trims=trims)


@pytest.fixture(scope="module")
def small_collator(small: tuple[Any, Any]) -> tuple[Any, TokenAligner]:
    """A collator of the two small tokenizers in chat mode, and its aligner."""
    aligner = TokenAligner(*small)
    return collator(small[0], [small[1]], [aligner], mode="chat"), aligner

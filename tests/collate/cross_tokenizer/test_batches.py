"""Shapes, padding, slots of teachers, and the collator in the processes of a DataLoader."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from atroposlib.align.aligner import TokenAligner
from atroposlib.collate.cross_tokenizer import CrossTokenizerCollator
from atroposlib.errors import AlignError
from tests.support.collators import collator, positions, row

Small = tuple[Any, Any]
ROWS = [
    row("ab abba", "cab ab", idx=1),
    row("a", "ab <|im_end|> naïve ab", idx=2, loss_multiplier=0.5),
    row("a", "b", "c", "abab", idx=3),
]


def built(small: Small, **changes: Any) -> CrossTokenizerCollator:
    """A collator of two small tokenizers between two teachers with the student's own."""
    made: CrossTokenizerCollator = collator(
        small[0], [None, small[1], small[0]], [None, TokenAligner(*small), None], **changes
    )
    return made


@pytest.mark.parametrize("mode", ["text", "chat"])
def test_names_types_and_shapes(small: Small, mode: str) -> None:
    batch = built(small, mode=mode)(ROWS)

    assert type(batch) is dict
    (_, width), (_, their_width) = batch["input_ids"].shape, batch["teacher_1_input_ids"].shape
    pairs = int(batch["alignment_1_num_chunks"].max())
    shapes = {
        "input_ids": (torch.int64, (3, width)),
        "input_lengths": (torch.int64, (3,)),
        "token_mask": (torch.int64, (3, width)),
        "sample_mask": (torch.float32, (3,)),
        "teacher_1_input_ids": (torch.int64, (3, their_width)),
        "teacher_1_input_lengths": (torch.int64, (3,)),
        "teacher_1_token_mask": (torch.int64, (3, their_width)),
        "alignment_1_pair_valid": (torch.bool, (3, pairs)),
        "alignment_1_pair_is_correct": (torch.bool, (3, pairs)),
        "alignment_1_student_chunk_id": (torch.int64, (3, width)),
        "alignment_1_teacher_chunk_id": (torch.int64, (3, their_width)),
        "alignment_1_student_exact_partition_mask": (torch.bool, (3, width)),
        "alignment_1_teacher_exact_partition_mask": (torch.bool, (3, their_width)),
        "alignment_1_num_chunks": (torch.int64, (3,)),
    }
    assert {
        name: (value.dtype, tuple(value.shape)) for name, value in batch.items() if name != "idx"
    } == shapes
    assert batch["idx"] == [1, 2, 3]
    assert batch["sample_mask"].tolist() == [1.0, 0.5, 1.0]
    assert batch["alignment_1_pair_is_correct"].equal(batch["alignment_1_pair_valid"])


@pytest.mark.parametrize("mode", ["text", "chat"])
def test_padding_is_masked_on_the_right_and_as_wide_as_the_divisor_asks(small: Small, mode: str) -> None:
    batch = built(small, mode=mode, make_seq_div_by_student=8, make_seq_div_by_teachers=[1, 100, 1])(ROWS)

    longest = int(batch["input_lengths"].max())
    assert batch["input_ids"].shape[1] == longest + -longest % 8
    assert batch["teacher_1_input_ids"].shape[1] in (100, 200)
    for prefix, side, tokenizer in (("", "student", small[0]), ("teacher_1_", "teacher", small[1])):
        place = torch.arange(batch[f"{prefix}input_ids"].shape[1])
        padding = place >= batch[f"{prefix}input_lengths"][:, None]
        assert padding.any()
        assert (batch[f"{prefix}input_ids"][padding] == tokenizer.pad_token_id).all()
        assert not batch[f"{prefix}token_mask"][padding].any()
        assert (batch[f"alignment_1_{side}_chunk_id"][padding] == -1).all()
        assert not batch[f"alignment_1_{side}_exact_partition_mask"][padding].any()


@pytest.mark.parametrize("mode", ["text", "chat"])
def test_a_row_comes_out_the_same_in_any_company(small: Small, mode: str) -> None:
    build = built(small, mode=mode)
    together = build(ROWS)
    for number, one in enumerate(ROWS):
        alone = build([one])
        for name, value in alone.items():
            if name == "idx" or value.ndim == 1:
                assert value[0] == together[name][number]
            else:
                width = value.shape[1]
                assert together[name][number, :width].tolist() == value[0].tolist()


@pytest.mark.parametrize("mode", ["text", "chat"])
def test_a_batch_of_no_rows_is_as_wide_as_padding(small: Small, mode: str) -> None:
    batch = built(small, mode=mode, make_seq_div_by_student=8)([])
    assert batch["input_ids"].shape == (0, 8)
    assert batch["alignment_1_pair_valid"].shape == (0, 1)


@pytest.mark.parametrize(("mode", "side"), [("text", ""), ("chat", "student, ")])
def test_half_a_surrogate_pair_is_refused_by_sample(small: Small, mode: str, side: str) -> None:
    with pytest.raises(AlignError, match=f"{side}sample idx=4.*surrogate") as caught:
        built(small, mode=mode)(
            [row("a", "a\ud83d", idx=4) | {"message_log": [{"role": "assistant", "content": "a\ud83d"}]}]
        )
    assert caught.value.code == "align.content"


def test_exact_partitions_are_the_chunks_of_one_token_each(small: Small) -> None:
    batch = built(small)([row("", "", idx=1) | {"message_log": [{"content": "xaby"}]}])
    # "ab" is one token to the student and two to the teacher.
    assert batch["alignment_1_student_chunk_id"].tolist() == [[0, 1, 2]]
    assert batch["alignment_1_teacher_chunk_id"].tolist() == [[0, 1, 1, 2]]
    assert positions(batch["alignment_1_student_exact_partition_mask"][0]) == [0, 2]
    assert positions(batch["alignment_1_teacher_exact_partition_mask"][0]) == [0, 3]


@given(length=st.integers(0, 300), divisor=st.integers(-2, 40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_padded_width_is_the_next_multiple(length: int, divisor: int) -> None:
    width = CrossTokenizerCollator._padded_width(length, divisor)
    step = max(divisor, 1)
    assert width == next(one for one in range(step, 1000, step) if one >= length)


def test_documents_are_padded_with_their_offsets_and_masks() -> None:
    ids, mask, offsets, assistant = CrossTokenizerCollator._pad_chat_batch(
        [[5, 6, 7], [8]], [[(0, 1), (1, 3), (3, 4)], [(0, 2)]], [[0, 1, 1], [1]], 9, 4
    )
    assert ids.tolist() == [[5, 6, 7, 9], [8, 9, 9, 9]]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert offsets.tolist() == [[[0, 1], [1, 3], [3, 4], [0, 0]], [[0, 2], [0, 0], [0, 0], [0, 0]]]
    assert assistant.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]


def test_texts_are_tokenized_with_their_offsets(small: Small) -> None:
    ids, mask, offsets = CrossTokenizerCollator._tokenize_batch(
        ["cabs", "x"], small[0], 3, 2, add_special_tokens=False
    )
    assert ids.tolist() == [
        [ord("c"), 256, ord("s"), small[0].pad_token_id],
        [ord("x"), *[small[0].pad_token_id] * 3],
    ]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert offsets[0].tolist() == [[0, 1], [1, 3], [3, 4], [0, 0]]


class Wrapped:
    """A batch of another kind."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors


def test_a_factory_makes_the_batch(small: Small) -> None:
    batch = built(small, batch_factory=Wrapped)(ROWS)
    assert isinstance(batch, Wrapped)
    assert "input_ids" in batch.tensors


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two batches are equal."""
    return one.keys() == other.keys() and all(
        value.equal(other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.mark.parametrize("mode", ["text", "chat"])
def test_a_copy_sent_to_another_process_collates_the_same(small: Small, mode: str) -> None:
    build = built(small, mode=mode)
    assert same(pickle.loads(pickle.dumps(build))(ROWS), build(ROWS))


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_loader_collate_the_same(small: Small, start: str, workers: int) -> None:
    build = built(small, mode="chat")
    loader = DataLoader(
        ROWS,
        batch_size=2,
        collate_fn=build,
        num_workers=workers,
        multiprocessing_context=start,
    )
    batches = list(loader)
    assert same(batches[0], build(ROWS[:2]))
    assert same(batches[1], build(ROWS[2:]))

"""Rows, cuts and chunks of a sequence against what its bytes say, and the count of all that is left out."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.collate.across import ChunkArrays, TeacherRows, chunk_arrays, joined
from atroposlib.collate.across.chunk_targets import LONGEST_CHUNK
from tests.support.toy_losses import class_of_teacher, named, safe_cuts
from tests.support.toy_world import SIDES, Tokens, ToySequence, sample_text, toy_pair, toy_sequence


def again(
    sequence: ToySequence,
    rows: TeacherRows,
    *,
    trained: np.ndarray | None = None,
    teacher_ids: list[int] | None = None,
    student_chunk_id: np.ndarray | None = None,
) -> ChunkArrays:
    """The arrays of a sequence, some of it replaced."""
    return chunk_arrays(
        toy_pair(),
        np.array(sequence.student_ids),
        np.ones(len(sequence.student_ids), dtype=np.bool_) if trained is None else trained,
        np.array(sequence.teacher_ids if teacher_ids is None else teacher_ids),
        rows,
        sequence.student_chunk_id if student_chunk_id is None else student_chunk_id,
        sequence.teacher_chunk_id,
    )


@given(seed=st.integers(0, 10_000), length=st.integers(0, 50))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_cuts_are_the_safe_boundaries_that_both_sides_have(seed: int, length: int) -> None:
    sequence = toy_sequence(sample_text(length, seed))
    arrays = sequence.arrays(3)
    cuts = safe_cuts(sequence)
    assert (arrays.positions[arrays.cut] + 1).tolist() == [cut.student for cut in cuts]
    np.testing.assert_array_equal(arrays.tokens, np.array(sequence.student_ids)[arrays.positions + 1])
    starts = arrays.positions + 1
    for row, cut in zip(np.flatnonzero(arrays.cut), cuts, strict=True):
        share = class_of_teacher(sequence, named(sequence, 3, cut.teacher), cut)
        assert math.isclose(arrays.boundary[row], math.log(share), abs_tol=1e-9)
        end = arrays.chunk_end[row]
        if cut is cuts[-1]:
            assert end == -1
            continue
        behind = cuts[cuts.index(cut) + 1]
        assert starts[end] == behind.student
        inside = np.flatnonzero(arrays.chunk_start == row)
        assert starts[inside].tolist() == list(range(cut.student, behind.student))
        path = sum(
            math.log(named(sequence, 3, u)[sequence.teacher_ids[u]])
            for u in range(cut.teacher, behind.teacher)
        )
        share = class_of_teacher(sequence, named(sequence, 3, behind.teacher), behind)
        assert math.isclose(arrays.path[row], path + math.log(share), abs_tol=1e-9)


@given(seed=st.integers(0, 10_000), length=st.integers(1, 50))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_surprisals_of_minimal_chunks_sum_to_those_of_all_tokens(seed: int, length: int) -> None:
    sequence = toy_sequence(sample_text(length, seed))
    arrays = sequence.arrays(2)
    total = -sum(
        math.log(named(sequence, 2, u)[number]) for u, number in enumerate(sequence.teacher_ids) if u
    )
    assert math.isclose(float(arrays.minimal_surprisal.sum()), total, rel_tol=1e-9)
    assert arrays.minimal_tokens == len(sequence.student_ids) - 1
    assert arrays.minimal_chunk.max() + 1 == len(arrays.minimal_surprisal)


@given(seed=st.integers(0, 10_000), masked=st.floats(0, 1), lost=st.floats(0, 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_trained_token_is_used_or_counted_with_a_reason(seed: int, masked: float, lost: float) -> None:
    random = np.random.default_rng(seed)
    sequence = toy_sequence(sample_text(40, seed))
    trained = random.random(len(sequence.student_ids)) >= masked
    rows = sequence.rows(3)
    rows.ids[random.random(len(rows.ids)) < lost * 0.3] = -1
    arrays = again(sequence, rows, trained=trained)
    counts = arrays.counts
    assert counts["trained_tokens"] == trained[1:].sum()
    assert counts["trained_tokens"] == sum(
        counts[name] for name in ("minimal_tokens", "no_chunk", "partly_trained", "not_scored")
    )
    begins = {cut.student for cut in safe_cuts(sequence)}
    wanted = sum(trained[token] for token in begins)
    assert wanted == counts["cuts"] + counts["cut_not_scored"]
    assert counts["cuts"] == arrays.cuts
    compared = int((arrays.chunk_end >= 0).sum())
    assert arrays.cuts == compared + counts["open_end"] + counts["chunk_untrained"]
    assert trained[arrays.positions[arrays.cut] + 1].all()
    assert trained[arrays.positions[arrays.chunk_start >= 0] + 1].all()
    assert trained[arrays.positions[arrays.minimal_chunk >= 0] + 1].all()


def test_a_batch_is_its_sequences_in_a_row() -> None:
    parts = [
        (toy_sequence(sample_text(30, seed)).arrays(k), offset)
        for seed, k, offset in [(1, 2, 0), (2, 5, 100), (3, 0, 200)]
    ]
    whole = joined(parts)
    row = chunk = 0
    for arrays, offset in parts:
        rows = slice(row, row + len(arrays.positions))
        assert (whole.positions[rows] == arrays.positions + offset).all()
        for name in ("tokens", "before", "cut", "boundary", "path", "tail_mass", "same_cell"):
            np.testing.assert_array_equal(getattr(whole, name)[rows], getattr(arrays, name))
        for name, moved in (("chunk_start", row), ("chunk_end", row), ("minimal_chunk", chunk)):
            own = getattr(arrays, name)
            np.testing.assert_array_equal(getattr(whole, name)[rows], np.where(own < 0, -1, own + moved))
        columns = arrays.cells.shape[1]
        np.testing.assert_array_equal(whole.cells[rows, :columns], arrays.cells)
        assert (whole.cells[rows, columns:] == -1).all()
        at_tail = arrays.observed_cell == columns
        assert (whole.observed_cell[rows][at_tail] == whole.cells.shape[1]).all()
        row += len(arrays.positions)
        chunk += len(arrays.minimal_surprisal)
    assert whole.counts["cuts"] == sum(arrays.cuts for arrays, _ in parts) == whole.cuts


def test_rows_of_another_token_or_with_too_much_mass_are_not_used() -> None:
    sequence = toy_sequence(sample_text(40, 1))
    rows = sequence.rows(3)
    cuts = safe_cuts(sequence)
    rows.ids[cuts[3].teacher, 0] = (sequence.teacher_ids[cuts[3].teacher] + 1) % SIDES[1].bos
    rows.ids[cuts[3].teacher, 1:] = -1
    rows.logprobs[cuts[6].teacher] = -0.1
    rows.logprobs[cuts[8].teacher, 1] = np.nan
    arrays = again(sequence, rows)
    left_out = {cuts[3].student, cuts[6].student, cuts[8].student}
    # NaN is no logprob: the column is absent.
    found = set((arrays.positions[arrays.cut] + 1).tolist())
    assert {cut.student for cut in cuts} - found == left_out - {cuts[8].student}
    assert arrays.counts["not_probabilities"] == 1
    assert arrays.counts["cut_not_scored"] == 2
    assert np.isfinite(arrays.path).all()


def test_a_column_that_is_listed_twice_counts_once() -> None:
    sequence = toy_sequence(sample_text(40, 1))
    rows = sequence.rows(3)
    twice = TeacherRows(
        0,
        np.pad(rows.ids, ((0, 0), (0, 1)), mode="edge"),
        np.pad(rows.logprobs, ((0, 0), (0, 1)), mode="edge"),
    )
    plain, doubled = again(sequence, rows), again(sequence, twice)
    np.testing.assert_array_equal(plain.cell_mass.sum(1), doubled.cell_mass.sum(1))
    assert doubled.counts["duplicate_columns"] == int((rows.ids[:, -1] >= 0).sum())


def test_without_top_k_there_is_no_cut_and_minimal_chunks_stay() -> None:
    sequence = toy_sequence(sample_text(40, 1))
    arrays = sequence.arrays(0)
    assert arrays.cuts == arrays.safe_tokens == 0
    assert arrays.minimal_tokens == len(sequence.student_ids) - 1
    assert arrays.counts["cut_no_topk"] == len(safe_cuts(sequence))


def test_chunks_of_other_bytes_are_no_chunks() -> None:
    sequence = toy_sequence(sample_text(40, 1))
    other = list(sequence.teacher_ids)
    at = next(u for u, number in enumerate(other) if number == SIDES[1].encode(b"a")[0])
    other[at] = SIDES[1].encode(b"c")[0]
    arrays = again(sequence, sequence.rows(3), teacher_ids=other)
    chunk = sequence.teacher_chunk_id[at]
    tokens = int((sequence.student_chunk_id == chunk).sum())
    assert arrays.counts["no_chunk"] == tokens
    assert arrays.minimal_tokens == len(sequence.student_ids) - 1 - tokens


def test_chunk_ids_that_do_not_rise_are_no_chunks() -> None:
    sequence = toy_sequence(sample_text(40, 1))
    arrays = again(sequence, sequence.rows(3), student_chunk_id=sequence.student_chunk_id[::-1])
    assert len(arrays.positions) == 0
    assert arrays.counts["no_chunk"] == len(sequence.student_ids) - 1


def test_a_gap_begins_a_new_span_whose_first_cut_is_taken_as_it_is() -> None:
    sequence = toy_sequence(sample_text(60, 2))
    safe = {cut.student for cut in safe_cuts(sequence)}
    chunk_id = sequence.student_chunk_id.copy()
    begins = [int(np.flatnonzero(chunk_id == chunk)[0]) for chunk in range(2, int(chunk_id.max()))]
    unsafe = next(token for token in begins if token not in safe)
    # The chunk before it is none any more.
    chunk_id[chunk_id == chunk_id[unsafe - 1]] = -1
    arrays = again(sequence, sequence.rows(3), student_chunk_id=chunk_id)
    row = int(np.flatnonzero(arrays.positions == unsafe - 1)[0])
    assert arrays.cut[row]
    assert arrays.before[row].tolist() == [256, 256]
    assert arrays.boundary[row] == 0.0
    assert arrays.counts["unsafe_starts"] == 1
    assert not (arrays.chunk_end == row).any()


def test_a_safe_chunk_of_many_tokens_is_not_compared() -> None:
    # "bc" within a token makes every cut between the two unsafe; the sides read it letter by letter.
    sides = Tokens((b"a", b"b", b"c", b" ", b"bbb")), Tokens((b"a", b"b", b"c", b" ", b"bbbb"))
    sequence = toy_sequence(b"a" + b"b" * (3 * LONGEST_CHUNK + 12) + b"aa", sides)
    arrays = sequence.arrays(3)
    assert arrays.counts["chunk_too_long"] == 1
    assert arrays.counts["cuts"] == len(safe_cuts(sequence))


@pytest.mark.parametrize("length", [0, 1])
def test_a_sequence_of_next_to_nothing(length: int) -> None:
    arrays = toy_sequence(sample_text(length, 0)).arrays(3)
    assert len(arrays.positions) == length
    assert {
        len(getattr(arrays, one.name))
        for one in fields(arrays)
        if one.name not in ("pair", "counts", "minimal_surprisal")
    } == {length}

"""The parts of the cross-tokenizer class against recorded values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atroposlib.losses.compatible.chunk_average import Chunks, chunk_means, chunk_sizes
from atroposlib.losses.compatible.cross_tokenizer import CrossTokenizerDistillationLossFn
from atroposlib.losses.compatible.exact_map import exact_map
from atroposlib.losses.compatible.localized import next_of
from atroposlib.losses.compatible.prepare import prepare_loss_input
from atroposlib.losses.compatible.projection_matrix import ProjectionMatrix
from atroposlib.losses.compatible.sharded import log_partition, logits_at
from atroposlib.losses.compatible.sparse_columns import highest_columns
from atroposlib.losses.groups import ALONE
from tests.support.loss_values import Case, Loaded, cases, load
from tests.support.projections import written


def matrix(loaded: Loaded, folder: Path) -> ProjectionMatrix:
    call = loaded.call
    path = written(loaded.inputs["projection"], folder / "projection")
    return ProjectionMatrix.load(path, call.get("student_vocab_size", 0), call.get("teacher_vocab_size", 0))


def picture(sparse: ProjectionMatrix) -> Tensor:
    dense = torch.zeros(sparse.student_size, sparse.teacher_size, dtype=torch.float64)
    return dense.index_put((sparse.student, sparse.teacher), sparse.weights, accumulate=True)


@pytest.mark.parametrize("case", cases("function:chunk_average_log_probs"), ids=str)
def test_chunk_means(case: Case) -> None:
    loaded = load(case)
    call = loaded.call
    means = chunk_means(call["log_probs"], call["chunk_id"], call["max_chunks"])
    loaded.check(means, loaded.outputs["chunk_log_probs"], "means")
    loaded.check(chunk_sizes(call["chunk_id"], call["max_chunks"]), loaded.outputs["chunk_sizes"], "sizes")


@pytest.mark.parametrize("case", cases("function:valid_chunk_mask"), ids=str)
def test_valid_chunks(case: Case) -> None:
    loaded = load(case)
    student, teacher = (ids_of_sizes(loaded.call[name]) for name in ("s_sizes", "t_sizes"))
    pairs = loaded.call["pair_valid"]
    chunks = Chunks(student, teacher, pairs, torch.zeros_like(pairs))
    loaded.check(chunks.compared(None), loaded.outputs["value"], "valid")
    assert not chunks.compared(None, correct_only=True).any()


def ids_of_sizes(sizes: Tensor) -> Tensor:
    """Chunk ids of rows whose chunks have these sizes."""
    sizes = sizes.long()
    width = int(sizes.sum(1).max())
    rows = [torch.repeat_interleave(torch.arange(len(row)), row) for row in sizes]
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=-1) for row in rows])


@pytest.mark.parametrize("case", cases("function:cp_shift_next"), ids=str)
def test_the_shift_to_the_logits(case: Case) -> None:
    loaded = load(case)
    loaded.check(next_of(loaded.call["x"], loaded.call["fill"]), loaded.outputs["value"], "shifted")


@pytest.mark.parametrize("case", cases("function:select_teacher_topk_indices"), ids=str)
def test_columns_of_a_batch(case: Case) -> None:
    loaded = load(case)
    logits = loaded.call["teacher_logits"]
    chosen = highest_columns(logits, logits.shape[-1], loaded.call["k"], ALONE)
    loaded.check(chosen, loaded.outputs["value"], "columns")


@pytest.mark.parametrize("case", cases("function:parse_projection_file"), ids=str)
def test_entries_of_a_projection_file(case: Case, tmp_path: Path) -> None:
    loaded = load(case)
    read = matrix(loaded, tmp_path)
    student, teacher = loaded.outputs["indices"]
    expected = torch.zeros(read.student_size, read.teacher_size, dtype=torch.float64)
    expected.index_put_(
        (student[teacher >= 0], teacher[teacher >= 0]),
        loaded.outputs["values"][teacher >= 0],
        accumulate=True,
    )
    loaded.check(picture(read), expected, "entries")
    assert (read.student_size, read.teacher_size) == (
        loaded.outputs["v_student"],
        loaded.outputs["v_teacher"],
    )


@pytest.mark.parametrize("case", cases("function:get_sparse_projection_matrix"), ids=str)
def test_the_matrix_of_a_projection_file(case: Case, tmp_path: Path) -> None:
    loaded = load(case)
    loaded.check(picture(matrix(loaded, tmp_path)), loaded.outputs["dense"], "matrix")


@pytest.mark.parametrize("case", cases("function:slice_sparse_projection_cols"), ids=str)
def test_columns_of_a_projection(case: Case, tmp_path: Path) -> None:
    loaded = load(case)
    sliced = matrix(loaded, tmp_path).columns(loaded.call["col_indices"])
    loaded.check(picture(sliced), loaded.outputs["dense"], "columns")


@pytest.mark.parametrize("case", cases("function:slice_sparse_projection_rows"), ids=str)
def test_rows_of_a_projection(case: Case, tmp_path: Path) -> None:
    loaded = load(case)
    sliced = matrix(loaded, tmp_path).rows(loaded.call["row_start"], loaded.call["row_end"])
    loaded.check(picture(sliced), loaded.outputs["dense"], "rows")


@pytest.mark.parametrize("case", cases("function:project_student_to_teacher_vocab"), ids=str)
def test_projected_probabilities_and_their_gradient(case: Case, tmp_path: Path) -> None:
    loaded = load(case)
    value = matrix(loaded, tmp_path).projected(loaded.call["student_probs"])
    loaded.check(value, loaded.outputs["value"], "value")
    loaded.check_gradients(value * loaded.inputs["cotangent"])


@pytest.mark.parametrize("case", cases("function:build_exact_token_map"), ids=str)
def test_common_tokens_of_a_projection(case: Case, tmp_path: Path) -> None:
    loaded = load(case)
    read = matrix(loaded, tmp_path)
    read = replace(read, teacher_size=loaded.call["teacher_vocab_size"])
    found = exact_map(read, relaxed=loaded.call["xtoken_loss"])
    for name, expected in loaded.outputs.items():
        assert getattr(found, name).tolist() == expected.tolist(), name


@pytest.mark.parametrize("case", cases("function:student_next_token_ce"), ids=str)
def test_next_token_cross_entropy_and_its_gradient(case: Case) -> None:
    loaded = load(case)
    logits, labels = loaded.call["logits"], loaded.call["input_ids"][:, 1:, None]
    value = log_partition(logits, None)[:, :-1] - logits_at(logits[:, :-1], labels, None)
    loaded.check(value.squeeze(-1), loaded.outputs["value"], "value")
    loaded.check_gradients(value)


@pytest.mark.parametrize("case", cases("function:next_token_accuracy"), ids=str)
def test_the_share_of_tokens_that_the_student_would_say(case: Case) -> None:
    loaded = load(case)
    call = loaded.call
    batch = {name: call[name] for name in ("input_ids", "token_mask", "sample_mask")}
    batch["teacher_0_full_logits_ipc"] = call["logits"]
    loss_fn = CrossTokenizerDistillationLossFn({"projection_matrix_paths": [None]})
    inputs = prepare_loss_input(call["logits"], batch, loss_fn)
    _, metrics = loss_fn(batch, None, torch.tensor(1.0), **inputs)
    loaded.check(metrics["accuracy"], loaded.outputs["value"], "accuracy")

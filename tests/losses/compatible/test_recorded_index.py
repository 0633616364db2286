"""The folder of recorded values is whole, and every class in it is run by some test."""

from __future__ import annotations

import pytest

from atroposlib.losses import compatible
from tests.support import loss_values

FUNCTIONS = {
    "build_exact_token_map",
    "calculate_kl",
    "chunk_average_log_probs",
    "cp_shift_next",
    "get_sparse_projection_matrix",
    "mask_out_neg_inf_logprobs",
    "masked_mean",
    "next_token_accuracy",
    "parse_projection_file",
    "project_student_to_teacher_vocab",
    "select_teacher_topk_indices",
    "slice_sparse_projection_cols",
    "slice_sparse_projection_rows",
    "student_next_token_ce",
    "valid_chunk_mask",
}
TRL = {"trl:gkd", "trl:iw_opd"}
EVERY_CASE = [loss_values.Case(entry) for entry in loss_values.index()["cases"]]


def test_the_copy_has_all_of_them() -> None:
    assert len(loss_values.index(loss_values.COPY)["cases"]) == 218


def test_no_class_is_listed_that_no_test_runs() -> None:
    classes = {name for name in compatible.__all__ if name.endswith("Fn")}
    run = classes | TRL | {f"function:{name}" for name in FUNCTIONS}
    assert {case.subject for case in EVERY_CASE} <= run
    assert {entry["class"] for entry in loss_values.index()["refusals"]} <= classes


@pytest.mark.parametrize("file", sorted({case.entry["file"] for case in EVERY_CASE}))
def test_every_array_that_the_index_names_is_there(file: str) -> None:
    for case in EVERY_CASE:
        if case.entry["file"] == file:
            loaded = loss_values.load(case)
            flat = {
                f"{name}/{part}" if part else name
                for name, value in loaded.inputs.items()
                for part in (value if isinstance(value, dict) else [""])
            }
            assert flat == set(case.entry["inputs"]), f"inputs of {case}"
            assert set(case.entry["gradients_with_respect_to"]) == loaded.grads.keys(), f"gradients of {case}"

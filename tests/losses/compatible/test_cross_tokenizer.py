"""The cross-tokenizer class: recorded values, refusals, and each switch away from a recorded fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atroposlib.errors import AtroposError, ConfigError, LossError
from atroposlib.losses.compatible.cross_tokenizer import (
    CrossTokenizerDistillationLossFn,
    valid_chunk_count,
)
from atroposlib.losses.compatible.prepare import prepare_loss_input
from tests.support.cross_tokenizer_batches import called, gradient, loss_of, recorded
from tests.support.loss_values import Case, cases, check_outcome, load, refusals
from tests.support.projections import written

CASES = cases("CrossTokenizerDistillationLossFn")
PAIRS = torch.tensor([[0, 0], [1, 1], [2, 1]]), torch.tensor([1.0, 0.5, 0.5])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_value_metrics_and_gradients_are_the_recorded_ones(
    case: Case, dtype: torch.dtype, tmp_path: Path
) -> None:
    loaded = load(case, dtype)
    loss_fn = loss_of(loaded, tmp_path)
    check_outcome(case, loaded, loss_fn)
    aligns = prepare_loss_input(loaded.call["logits"], loaded.call["data"], loss_fn)["aligns_by_idx"]
    for name, expected in loaded.intermediates.items():
        side, i = name.split("_")[0], int(name[-1])
        loaded.check(getattr(aligns[i].chunks, f"{side}_id"), expected, name)


@pytest.mark.parametrize("entry", refusals("CrossTokenizerDistillationLossFn"), ids=lambda e: str(e["why"]))
def test_what_the_library_refuses_late_or_not_at_all_is_refused_at_construction(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    config = dict(entry["config"])
    one_teacher = config.get("teacher_xtoken_loss") == [True] or "gold_loss" in config
    config["projection_matrix_paths"] = [None] * (1 if one_teacher else 2)
    if "gold_loss" in config:
        config["projection_matrix_paths"] = [written({"pairs": PAIRS[0], "values": PAIRS[1]}, tmp_path / "p")]
    with pytest.raises(ConfigError):
        CrossTokenizerDistillationLossFn(config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"projection_matrix_paths": []},
        {"projection_matrix_paths": [None], "student_model": "x"},
        {"projection_matrix_paths": [None], "uncommon_topk": 0},
        {"projection_matrix_paths": [None], "alpha": float("nan")},
        {"projection_matrix_paths": [None], "normalize_teacher_by_vocab": True},
        {"projection_matrix_paths": ["missing.safetensors"]},
        {
            "projection_matrix_paths": [None, "p.safetensors"],
            "kd_loss_mode": "averaged_logits",
            "refuse_averaged_fallback": True,
        },
    ],
    ids=str,
)
def test_other_settings_that_cannot_work_are_refused_at_construction(config: dict[str, Any]) -> None:
    with pytest.raises(AtroposError):
        CrossTokenizerDistillationLossFn(config)


@pytest.mark.parametrize("name", ["pkl_dense_rev0_exact0_k50_T1", "gold_rev0_u8192_T1", "xtoken_rev1_u5_T2"])
def test_with_global_counts_of_chunks_the_parts_of_a_batch_add_up(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    batch = loaded.call["data"]
    loss_fn = loss_of(loaded, tmp_path, global_chunk_counts=True)
    batch = batch | {"alignment_0_global_valid_chunks": torch.tensor(valid_chunk_count(batch, 0) + 3)}
    whole, _ = called(loss_fn, loaded, batch)
    parts = [called(loss_fn, loaded, batch, rows)[0] for rows in (slice(0, 1), slice(1, None))]
    torch.testing.assert_close(parts[0] + parts[1], whole)
    torch.testing.assert_close(gradient(parts[0] + parts[1], loaded), gradient(whole, loaded))


def test_the_count_of_valid_chunks_is_the_recorded_one() -> None:
    for case in CASES:
        loaded = load(case)
        for i in range(len(loaded.config["projections"])):
            for name in (f"num_valid_chunks_t{i}", f"num_valid_pairs_t{i}"):
                if name in loaded.metrics:
                    correct_only = loaded.config.get("exact_token_match_only", False) and "pairs" in name
                    found = valid_chunk_count(loaded.call["data"], i, correct_only=correct_only)
                    assert found == loaded.metrics[name], case


def test_global_counts_that_the_batch_does_not_have_are_asked_for(tmp_path: Path) -> None:
    loaded = recorded("pkl_dense_rev0_exact0_k50_T1")
    with pytest.raises(LossError, match="alignment_0_global_valid_chunks"):
        called(loss_of(loaded, tmp_path, global_chunk_counts=True), loaded)


@pytest.mark.parametrize(("switched", "told"), [({}, True), ({"global_chunk_counts": True}, False)])
def test_a_mean_over_a_batch_s_own_chunks_is_warned_about(
    switched: dict[str, Any], told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loss_of(recorded("pkl_dense_rev0_exact0_k12_T1"), tmp_path, dynamic_loss_scaling=False, **switched)
    assert ("global_chunk_counts" in caplog.text) == told


def test_a_shared_tokenizer_with_fixed_scaling_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    CrossTokenizerDistillationLossFn({"projection_matrix_paths": [None], "dynamic_loss_scaling": False})
    assert not caplog.text


@pytest.mark.parametrize("name", ["pkl_dense_rev0_exact0_k12_T1", "pkl_dense_rev1_exact1_k12_T2"])
def test_columns_of_each_chunk_do_not_depend_on_the_rest_of_the_batch(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    batch = loaded.call["data"] | {"alignment_0_global_valid_chunks": torch.tensor(11)}
    loss_fn = loss_of(loaded, tmp_path, global_chunk_counts=True, columns_per_row=True)
    whole, _ = called(loss_fn, loaded, batch)
    parts = [called(loss_fn, loaded, batch, rows)[0] for rows in (slice(0, 1), slice(1, None))]
    torch.testing.assert_close(parts[0] + parts[1], whole)
    torch.testing.assert_close(gradient(parts[0] + parts[1], loaded), gradient(whole, loaded))


@pytest.mark.parametrize("name", ["pkl_dense_rev0_exact0_k50_T1", "same_rev0_k8192_T2", "same_rev1_k40_T1"])
def test_columns_of_each_row_are_the_columns_of_the_batch_where_all_are_taken(
    name: str, tmp_path: Path
) -> None:
    loaded = recorded(name)
    loss, _ = called(loss_of(loaded, tmp_path, columns_per_row=True), loaded)
    loaded.check(loss, loaded.loss, "loss")
    loaded.check_gradients(loss)


@pytest.mark.parametrize(
    "name",
    [
        "pkl_student_equals_teacher_pairs_rev0",
        "pkl_student_equals_teacher_pairs_rev1",
        "gold_student_equals_teacher_pairs_rev0",
    ],
)
def test_a_proper_divergence_is_0_without_a_gradient_for_equal_models(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    loss_fn = loss_of(loaded, tmp_path, proper_divergence=True, ce_loss_scale=0.0)
    loss, metrics = called(loss_fn, loaded)
    assert abs(loss.item()) < 1e-8
    assert gradient(loss, loaded).abs().max() < 1e-8
    assert metrics["negative_kl"] in (0, int(loss < 0))


@pytest.mark.parametrize("name", ["gold_teacher_off_common_set", "gold_teacher_off_common_set_dynamic"])
def test_a_term_that_goes_negative_is_counted_and_a_proper_one_does_not(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    _, metrics = called(loss_of(loaded, tmp_path), loaded)
    assert metrics["negative_kl"] == int(loaded.metrics["kl_loss"] < 0)
    assert metrics["kl_common_t0"] < 0
    _, proper = called(loss_of(loaded, tmp_path, proper_divergence=True), loaded)
    assert proper["kl_common_t0"] > 0
    assert proper["negative_kl"] == 0


def test_a_batch_without_a_teacher_or_its_alignment_is_refused(tmp_path: Path) -> None:
    loaded = recorded("pkl_dense_rev0_exact0_k12_T1")
    batch = loaded.call["data"]
    without = {name: value for name, value in batch.items() if not name.endswith("full_logits_ipc")}
    with pytest.raises(LossError, match="lacks teachers"):
        called(loss_of(loaded, tmp_path), loaded, without)
    unaligned = {name: value for name, value in batch.items() if not name.startswith("alignment")}
    with pytest.raises(LossError, match="alignment_0_student_chunk_id"):
        called(loss_of(loaded, tmp_path), loaded, unaligned)

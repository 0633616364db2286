"""Several teachers: decisions a sequence instead of a batch, and averages that cannot be taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from atroposlib.errors import LossError
from tests.support.cross_tokenizer_batches import called, gradient, loss_of, recorded
from tests.support.loss_values import Loaded

WHOLE = {"global_chunk_counts": True, "columns_per_row": True, "scores_per_sequence": True}


def with_counts(loaded: Loaded) -> dict[str, object]:
    counts = {f"alignment_{i}_global_valid_chunks": torch.tensor(17 + i) for i in range(3)}
    return loaded.call["data"] | counts


@pytest.mark.parametrize(
    "name",
    ["sum_ce_norm1_alpha0.5", "sum_entropy_norm0_alpha2", "sum_max_prob_norm1_alpha3", "select_teacher_0"],
)
def test_with_decisions_a_sequence_the_parts_of_a_batch_add_up(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    loss_fn = loss_of(loaded, tmp_path, **WHOLE)
    batch = with_counts(loaded)
    whole, _ = called(loss_fn, loaded, batch)
    parts = [called(loss_fn, loaded, batch, rows)[0] for rows in (slice(0, 1), slice(1, None))]
    torch.testing.assert_close(parts[0] + parts[1], whole)
    torch.testing.assert_close(gradient(parts[0] + parts[1], loaded), gradient(whole, loaded))


def test_each_sequence_selects_the_teacher_that_it_would_select_alone(tmp_path: Path) -> None:
    loaded = recorded("select_teacher_1")
    alone = loss_of(loaded, tmp_path)
    batch = loaded.call["data"]
    expected = [
        int(called(alone, loaded, batch, slice(row, row + 1))[1]["selected_teacher"])
        for row in range(len(batch["input_ids"]))
        if batch["sample_mask"][row] > 0
    ]
    kept = batch["sample_mask"].nonzero().squeeze(-1)
    _, metrics = called(loss_of(loaded, tmp_path, scores_per_sequence=True), loaded, batch, kept)
    assert [int(metrics[f"selected_t{i}"]) for i in range(3)] == [expected.count(i) for i in range(3)]


@pytest.mark.parametrize(("name", "fallen"), [("averaged_valid_rev0_T1", 0), ("averaged_fallback_shape", 1)])
def test_an_average_that_cannot_be_taken_is_counted(name: str, fallen: int, tmp_path: Path) -> None:
    loaded = recorded(name)
    _, metrics = called(loss_of(loaded, tmp_path), loaded)
    assert metrics["averaged_logits_fallback"] == fallen


def test_an_average_that_cannot_be_taken_is_refused_on_request(tmp_path: Path) -> None:
    loaded = recorded("averaged_fallback_shape")
    with pytest.raises(LossError, match="cannot be averaged"):
        called(loss_of(loaded, tmp_path, refuse_averaged_fallback=True), loaded)

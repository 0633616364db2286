"""Teachers whose columns a server ships: equal to full logits where all are, one more event where not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible.sparse_columns import SparseColumns, dense, highest_columns
from atroposlib.losses.groups import ALONE
from tests.support.cross_tokenizer_batches import called, gradient, loss_of, recorded, shipped
from tests.support.loss_values import Loaded

EVERY_MODE = [
    "pkl_dense_rev0_exact0_k50_T1",
    "pkl_dense_rev1_exact1_k50_T1",
    "gold_rev0_u5_T1",
    "gold_rev1_u8192_T1",
    "xtoken_rev0_u8192_T1",
    "same_padded_head_dynamic",
    "same_gold_flag_is_inert",
    "same_rev1_k40_T1",
    "averaged_valid_rev0_T1",
    "select_teacher_2",
]


def all_shipped(loaded: Loaded, k: int) -> dict[str, Any]:
    batch = loaded.call["data"]
    for i in range(len(loaded.config["projections"])):
        batch = shipped(batch, i, k)
    return batch


@pytest.mark.parametrize("name", EVERY_MODE)
def test_all_columns_give_what_full_logits_give(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    loss_fn = loss_of(loaded, tmp_path, vocab_topk=8192)
    expected, wanted = called(loss_fn, loaded)
    loss, metrics = called(loss_fn, loaded, all_shipped(loaded, 60))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, loaded), gradient(expected, loaded))
    for metric, value in wanted.items():
        torch.testing.assert_close(metrics[metric], value, msg=metric)


@pytest.mark.parametrize("name", [name for name in EVERY_MODE if "select" not in name])
def test_the_error_against_full_logits_falls_to_nothing_with_more_columns(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    loss_fn = loss_of(loaded, tmp_path, vocab_topk=8192, kl_loss_weight=1.0, ce_loss_scale=0.0)
    for i in range(len(loaded.config["projections"])):
        # A teacher as sure as real ones: of 40 to 50 ids, 16 have nearly all of the mass.
        loaded.call["data"][f"teacher_{i}_full_logits_ipc"] *= 3
    # A reverse KL asks about what the student, here an ignorant one, finds likely: the last columns count.
    some = 38 if loss_fn.cfg.reverse_kl else 16
    exact = gradient(called(loss_fn, loaded)[0], loaded)
    errors = [
        (gradient(called(loss_fn, loaded, all_shipped(loaded, k))[0], loaded) - exact).norm() / exact.norm()
        for k in (2, some, 60)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12


def rows_of(batch: dict[str, Any], i: int) -> list[list[dict[int, float]]]:
    """Shipped columns as id to log probability, of the token after each position."""
    ids, logprobs = batch[f"teacher_{i}_topk_ids"], batch[f"teacher_{i}_topk_logprobs"]
    return [
        [
            {int(v): float(q) for v, q in zip(ids[b, t], logprobs[b, t], strict=True) if v >= 0}
            for t in range(1, ids.shape[1])
        ]
        for b in range(len(ids))
    ]


def members(chunk_id: Tensor, b: int, c: int) -> list[int]:
    """Positions whose next token lies in chunk ``c``."""
    return [t - 1 for t in range(1, chunk_id.shape[1]) if chunk_id[b, t] == c]


def chunks_of(loaded: Loaded) -> list[tuple[int, list[int], list[int]]]:
    """Row, student positions and teacher positions of every valid pair."""
    batch = loaded.call["data"]
    found = []
    for b, c in batch["alignment_0_pair_valid"].nonzero().tolist():
        sides = [members(batch[f"alignment_0_{side}_chunk_id"], b, c) for side in ("student", "teacher")]
        if all(sides) and batch["sample_mask"][b] > 0:
            found.append((b, *sides))
    return found


@pytest.mark.parametrize("name", ["pkl_dense_rev0_exact0_k50_T1", "pkl_dense_rev1_exact0_k50_T1"])
def test_a_chunk_of_p_kl_compares_what_all_its_tokens_have_and_any_other_token(
    name: str, tmp_path: Path
) -> None:
    loaded = recorded(name)
    loss_fn = loss_of(loaded, tmp_path)
    batch = shipped(loaded.call["data"], 0, 15)
    _, metrics = called(loss_fn, loaded, batch)
    matrix = torch.zeros(40, 50, dtype=torch.float64)
    arrays = loaded.config["projections"][0]
    for row, (ids, weights) in enumerate(zip(arrays["indices"], arrays["likelihoods"], strict=True)):
        for v, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            matrix[row, v] += weight if v >= 0 else 0.0
    probabilities = loaded.call["logits"].detach().softmax(-1) @ matrix
    total, empty = 0.0, 0
    for b, student, teacher in chunks_of(loaded):
        columns = [rows_of(batch, 0)[b][t] for t in teacher]
        both = sorted(set.intersection(*map(set, columns)))
        empty += not both
        q = [sum(row[v] for row in columns) / len(columns) for v in both]
        others = [math.log(1 - sum(math.exp(row[v]) for v in both)) for row in columns]
        q.append(sum(others) / len(columns))
        p = probabilities[b, student].mean(0)
        p = torch.cat([p[both], p[[v for v in range(50) if v not in both]].sum()[None]])
        p = (p / p.sum() + 1e-10).log()
        for log_q, log_p in zip(q, p.tolist(), strict=True):
            first, second = (log_p, log_q) if "rev1" in name else (log_q, log_p)
            total += math.exp(first) * (first - second)
    assert metrics["chunks_without_columns_t0"] == empty
    assert empty > 0
    torch.testing.assert_close(
        metrics["kl_loss"].item(), total / len(chunks_of(loaded)), rtol=1e-7, atol=1e-8
    )


@pytest.mark.parametrize("name", ["gold_rev0_u5_T1", "gold_rev1_u8192_T1", "xtoken_rev0_u8192_T1"])
def test_a_chunk_of_gold_compares_the_columns_that_all_its_tokens_have(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    loss_fn = loss_of(loaded, tmp_path)
    same = loss_fn.teachers._maps[0]
    batch = shipped(loaded.call["data"], 0, 25)
    _, metrics = called(loss_fn, loaded, batch)
    logprobs = loaded.call["logits"].detach().log_softmax(-1)
    common, l1 = 0.0, 0.0
    for b, student, teacher in chunks_of(loaded):
        columns = [rows_of(batch, 0)[b][t] for t in teacher]
        both = set.intersection(*map(set, columns))
        q = {v: sum(row[v] for row in columns) / len(columns) for v in both}
        p = logprobs[b, student].mean(0)
        for u, v in zip(same.common_student.tolist(), same.common_teacher.tolist(), strict=True):
            if v in both:
                first, second = (p[u].item(), q[v]) if "rev1" in name else (q[v], p[u].item())
                common += math.exp(first) * (first - second)
        teachers = sorted((math.exp(q[v]) for v in same.uncommon_teacher.tolist() if v in both), reverse=True)
        students = p[same.uncommon_student].exp().sort(descending=True).values.tolist()
        ranks = min(len(students), len(same.uncommon_teacher), loss_fn.cfg.uncommon_topk)
        l1 += sum(abs(a - b) for a, b in zip(students[:ranks], teachers[:ranks], strict=False))
    count = len(chunks_of(loaded))
    torch.testing.assert_close(metrics["kl_common_t0"].item(), common / count)
    torch.testing.assert_close(metrics["l1_uncommon_t0"].item(), l1 / count)


@pytest.mark.parametrize("name", EVERY_MODE)
@pytest.mark.parametrize("proper", [False, True])
def test_few_columns_give_finite_values_and_gradients(name: str, proper: bool, tmp_path: Path) -> None:
    loaded = recorded(name)
    loss_fn = loss_of(loaded, tmp_path, vocab_topk=8192, temperature=1.0, proper_divergence=proper)
    loss, metrics = called(loss_fn, loaded, all_shipped(loaded, 3))
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient(loss, loaded)).all()
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in metrics.values())
    if proper:
        assert metrics["kl_loss"] >= 0


def test_ids_that_the_vocabulary_does_not_have_are_counted_and_left_out(tmp_path: Path) -> None:
    loaded = recorded("same_gold_flag_is_inert")
    loss_fn = loss_of(loaded, tmp_path)
    batch = shipped(loaded.call["data"], 0, 10)
    ids = batch["teacher_0_topk_ids"].clone()
    ids[:, 1:, 4] = 40
    loss, metrics = called(loss_fn, loaded, batch | {"teacher_0_topk_ids": ids})
    ids = ids.clone()
    ids[:, 1:, 4] = -1
    expected, _ = called(loss_fn, loaded, batch | {"teacher_0_topk_ids": ids})
    torch.testing.assert_close(loss, expected)
    assert metrics["out_of_vocabulary_t0"] == ids.shape[0] * (ids.shape[1] - 1)


def test_the_mass_that_was_shipped_is_told(tmp_path: Path) -> None:
    loaded = recorded("pkl_dense_rev0_exact0_k50_T1")
    batch = loaded.call["data"]
    _, metrics = called(loss_of(loaded, tmp_path), loaded, shipped(batch, 0, 8))
    trained = batch["teacher_0_token_mask"][:, 1:] * batch["sample_mask"][:, None] > 0
    mass = batch["teacher_0_full_logits_ipc"].softmax(-1).topk(8, -1).values.sum(-1)[:, :-1]
    torch.testing.assert_close(metrics["captured_mass_t0"], mass[trained].sum())
    assert metrics["rows_with_columns_t0"] == trained.sum()


@pytest.mark.parametrize("name", ["pkl_dense_rev0_exact0_k50_T2", "gold_rev0_u5_T2", "same_rev0_k8192_T2"])
def test_a_temperature_needs_the_whole_distribution(name: str, tmp_path: Path) -> None:
    loaded = recorded(name)
    with pytest.raises(LossError, match="temperature"):
        called(loss_of(loaded, tmp_path), loaded, shipped(loaded.call["data"], 0, 60))


def test_a_server_that_does_not_ship_a_token_says_nothing_about_it_to_a_score(tmp_path: Path) -> None:
    loaded = recorded("sum_ce_norm0_alpha1")
    batch = loaded.call["data"]
    loss_fn = loss_of(loaded, tmp_path)
    few = shipped(batch, 0, 6)
    weights = called(loss_fn, loaded, few)[1]
    logprobs = batch["teacher_0_full_logits_ipc"].log_softmax(-1)
    labels = batch["teacher_0_input_ids"][:, 1:, None]
    known = (logprobs.topk(6, -1).indices[:, :-1] == labels).any(-1)
    trained = (batch["teacher_0_token_mask"][:, 1:] * batch["sample_mask"][:, None] > 0) & known
    score = logprobs[:, :-1].gather(-1, labels).squeeze(-1)[trained].mean()
    full = called(loss_fn, loaded)[1]
    # softmax weights: their ratio is the exponential of the difference of two scores.
    other = full["weight_t0"].log() - full["weight_t1"].log()
    found = weights["weight_t0"].log() - weights["weight_t1"].log()
    mask = batch["teacher_0_token_mask"][:, 1:] * batch["sample_mask"][:, None] > 0
    full_score = logprobs[:, :-1].gather(-1, labels).squeeze(-1)[mask].mean()
    torch.testing.assert_close(found - other, score - full_score)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("silent", [0, 1])
def test_a_teacher_that_said_nothing_is_neither_chosen_nor_weighed(
    silent: int, by_row: bool, tmp_path: Path
) -> None:
    loaded = recorded("sum_ce_norm0_alpha1")
    batch = dict(all_shipped(loaded, 60))
    batch[f"teacher_{silent}_topk_ids"] = torch.full_like(batch[f"teacher_{silent}_topk_ids"], -1)
    for metric in ("ce", "entropy", "max_prob"):
        weighing = loss_of(loaded, tmp_path, sum_weights_metric=metric, scores_per_sequence=by_row)
        assert called(weighing, loaded, batch)[1][f"weight_t{silent}"] == 0, metric
    choosing = loss_of(
        loaded,
        tmp_path,
        kd_loss_mode="select_teacher",
        sum_weights_metric=None,
        normalize_teacher_by_vocab=False,
        scores_per_sequence=by_row,
    )
    metrics = called(choosing, loaded, batch)[1]
    chosen = metrics[f"selected_t{silent}"] if by_row else metrics["selected_teacher"] == silent
    assert not chosen


def test_columns_stand_where_their_ids_are_asked_for() -> None:
    teacher = SparseColumns(torch.tensor([[[7, 2, -1, 9]]]), torch.tensor([[[-0.5, -1.0, -torch.inf, -3.0]]]))
    assert dense(teacher, 8, torch.tensor([2, 3, 7])).tolist() == [[[-1.0, -math.inf, -0.5]]]
    assert dense(teacher, 4).tolist() == [[[-math.inf, -math.inf, -1.0, -math.inf]]]
    assert highest_columns(teacher, 8, 2, ALONE).tolist() == [2, 7]

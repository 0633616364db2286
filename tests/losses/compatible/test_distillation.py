"""DistillationLossFn: recorded values, absent columns, masks, and the paths its inputs come by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.errors import ConfigError, LossError
from atroposlib.losses.compatible.distillation import DistillationLossFn
from atroposlib.losses.compatible.prepare import prepare_loss_input
from atroposlib.losses.head import Head
from tests.support.loss_values import Case, Loaded, cases, copied, load, refusals

CASES = cases("DistillationLossFn")
INVENTED = [case for case in CASES if "nan:loss" in case.flags]
SOUND = [case for case in CASES if case not in INVENTED]


def called(loss: DistillationLossFn, call: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    inputs = dict(call)
    if "logits" in inputs:
        inputs |= prepare_loss_input(inputs.pop("logits"), call["data"], loss)
    return loss(**inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", SOUND, ids=str)
def test_value_metrics_gradients_and_inputs_are_the_recorded_ones(case: Case, dtype: torch.dtype) -> None:
    loaded = load(case, dtype)
    loss_fn = DistillationLossFn(loaded.config)
    loss, metrics = called(loss_fn, loaded.call)
    loaded.check(loss, loaded.loss, "loss")
    loaded.check_metrics(metrics)
    loaded.check_gradients(loss)
    if loaded.intermediates:
        inputs = prepare_loss_input(loaded.call["logits"], loaded.call["data"], loss_fn)
        for name, expected in loaded.intermediates.items():
            loaded.check(inputs[name], expected, name)


@pytest.mark.parametrize("case", INVENTED, ids=str)
def test_an_absent_column_leaves_the_row_as_if_it_had_never_been_there(case: Case) -> None:
    loaded = load(case)
    data = loaded.call["data"]
    loss, metrics = called(DistillationLossFn(loaded.config), loaded.call)
    (gradient,) = torch.autograd.grad(loss, loaded.call["logits"])
    # The recorded absent column is the last one, in every row.
    shorter = data | {name: data[name][..., :-1] for name in ("teacher_topk_logits", "teacher_topk_indices")}
    expected, _ = called(DistillationLossFn(loaded.config), loaded.call | {"data": shorter})
    (expected_gradient,) = torch.autograd.grad(expected, loaded.call["logits"])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert metrics["absent_columns"] == (data["token_mask"][:, 1:] * data["sample_mask"][:, None] > 0).sum()


def test_a_row_without_any_column_is_not_trained_and_counted() -> None:
    loaded = first()
    data = dict(loaded.call["data"])
    trained = (data["token_mask"] * data["sample_mask"][:, None] > 0).nonzero()
    row, token = next((int(b), int(t)) for b, t in trained if t > 0)
    columns = data["teacher_topk_logits"].clone()
    columns[row, token - 1] = -torch.inf
    data["teacher_topk_logits"] = columns
    loss, metrics = called(DistillationLossFn(loaded.config), loaded.call | {"data": data})
    (gradient,) = torch.autograd.grad(loss, loaded.call["logits"])
    masked = data["token_mask"].clone()
    masked[row, token] = 0
    expected, _ = called(
        DistillationLossFn(loaded.config), loaded.call | {"data": data | {"token_mask": masked}}
    )
    assert metrics["rows_without_columns"] == 1
    torch.testing.assert_close(loss, expected)
    assert gradient[row, token - 1].abs().max() == 0


def test_ids_beyond_the_head_are_absent() -> None:
    loaded = first()
    data = dict(loaded.call["data"])
    ids = data["teacher_topk_indices"].clone()
    ids[..., 1] = loaded.call["logits"].shape[-1]
    loss, metrics = called(
        DistillationLossFn(loaded.config), loaded.call | {"data": data | {"teacher_topk_indices": ids}}
    )
    columns = data["teacher_topk_logits"].clone()
    columns[..., 1] = -torch.inf
    expected, _ = called(
        DistillationLossFn(loaded.config), loaded.call | {"data": data | {"teacher_topk_logits": columns}}
    )
    torch.testing.assert_close(loss, expected)
    assert metrics["absent_columns"] > 0


def test_rows_that_only_pad_the_head_are_no_tokens() -> None:
    loaded = first()
    torch.manual_seed(0)
    tokens = loaded.call["logits"].shape[-1]
    hidden = torch.randn(*loaded.call["logits"].shape[:2], 5, dtype=torch.float64).requires_grad_()
    weight = torch.randn(tokens + 3, 5, dtype=torch.float64)
    data = loaded.call["data"]
    beyond = data["teacher_topk_indices"].clone()
    beyond[..., 1] = tokens + 1
    loss_fn = DistillationLossFn(loaded.config)
    results = []
    for head in (Head(weight, vocabulary=tokens), Head(weight[:tokens])):
        batch = data | {"teacher_topk_indices": beyond}
        inputs = prepare_loss_input(hidden, batch, loss_fn, head=head)
        loss, _ = loss_fn(data=batch, global_valid_seqs=None, global_valid_toks=torch.tensor(9.0), **inputs)
        results.append((loss.detach(), *torch.autograd.grad(loss, hidden)))
    torch.testing.assert_close(*results)
    assert results[0][0].isfinite()


@pytest.mark.parametrize("zero_outside", [False, True])
def test_hidden_states_and_head_give_what_their_logits_give(zero_outside: bool) -> None:
    loaded = first()
    torch.manual_seed(0)
    hidden = torch.randn(*loaded.call["logits"].shape[:2], 5, dtype=torch.float64)
    head = Head(torch.randn(loaded.call["logits"].shape[-1], 5, dtype=torch.float64), soft_cap=3.0)
    loss_fn = DistillationLossFn({"kl_type": "reverse", "zero_outside_topk": zero_outside})
    from_hidden = prepare_loss_input(hidden, loaded.call["data"], loss_fn, head=head)
    logits = 3.0 * torch.tanh(hidden @ head.weight.T / 3.0)
    for name, expected in prepare_loss_input(logits, loaded.call["data"], loss_fn).items():
        if expected is not None:
            torch.testing.assert_close(from_hidden[name], expected)


def test_a_batch_without_masks_is_counted_or_refused() -> None:
    loaded = load(copied("distillation_no_masks"))
    _, metrics = called(DistillationLossFn(loaded.config), loaded.call)
    assert metrics["batches_without_masks"] == 1
    with pytest.raises(LossError, match="no masks"):
        called(DistillationLossFn({**loaded.config, "require_masks": True}), loaded.call)


def test_a_loss_of_two_parts_of_a_batch_adds_up_to_the_whole_one() -> None:
    loaded = first()
    loss, _ = called(DistillationLossFn(loaded.config), loaded.call)
    parts = []
    for rows in (slice(0, 1), slice(1, None)):
        data = {name: value[rows] for name, value in loaded.call["data"].items()}
        call = loaded.call | {"logits": loaded.call["logits"][rows], "data": data}
        parts.append(called(DistillationLossFn(loaded.config), call)[0])
    torch.testing.assert_close(parts[0] + parts[1], loss)


@pytest.mark.parametrize(
    "config", [entry["config"] for entry in refusals("DistillationLossFn") if entry["config"]] + [{"k": 1}]
)
def test_settings_that_are_none_are_refused_at_construction(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DistillationLossFn(config)


def test_a_teacher_without_columns_is_refused() -> None:
    loaded = first()
    data = loaded.call["data"]
    empty = {name: data[name][..., :0] for name in ("teacher_topk_logits", "teacher_topk_indices")}
    with pytest.raises(LossError, match="no columns"):
        prepare_loss_input(loaded.call["logits"], data | empty, DistillationLossFn({}))


def test_zero_outside_topk_without_the_entropy_is_refused() -> None:
    loaded = load(copied("distillation_logprobs_mixed_zero1"))
    with pytest.raises(LossError, match="H_all"):
        called(DistillationLossFn(loaded.config), loaded.call | {"H_all": None})


def first() -> Loaded:
    return load(copied("distillation_forward_w0.5_zero0"))

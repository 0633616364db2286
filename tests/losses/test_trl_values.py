"""The divergences that TRL's trainers gave on recorded inputs, where the support can be told to ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from atroposlib.losses.topk_distillation import topk_distillation_from_logits
from tests.support.loss_values import Case, Loaded, cases, load

CASES = cases("trl:iw_opd", "trl:gkd")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_loss_and_gradient_are_the_recorded_ones(case: Case, dtype: torch.dtype) -> None:
    loaded = load(case, dtype)
    call = loaded.call
    beta, temperature = call["beta"], call["temperature"]
    loss = from_columns(loaded, call)
    # TRL's mixture term lacks the division that makes ours continuous in beta, and T^2.
    factor = beta * (1 - beta) if 0 < beta < 1 else 1.0
    loss = loss * factor / temperature**2
    assert loaded.loss is not None
    loaded.check(loss, loaded.loss, "loss")
    loaded.check_gradients(loss)


def from_columns(loaded: Loaded, call: dict[str, Any]) -> Tensor:
    """Our loss with the columns that TRL chooses: the teacher's best, the student's, or both."""
    student, teacher = call["student_logits"], call["teacher_logits"]
    counted = call["labels"].flatten() != -100
    student, teacher = student.flatten(0, 1), teacher.flatten(0, 1)
    beta, temperature = call["beta"], call["temperature"]
    teacher_logprobs = torch.log_softmax(teacher.double() / temperature, -1)
    best = call.get("top_k") or student.shape[-1]
    of_teacher, of_student = (side.topk(best, -1).indices for side in (teacher, student.detach()))
    ids = of_student if beta == 1 else of_teacher
    extra: dict[str, Any] = {}
    if 0 < beta < 1:
        extra = {"extra_ids": of_student, "extra_logprobs": teacher_logprobs.gather(-1, of_student)}
    logprobs = teacher_logprobs.gather(-1, ids)
    items = call.get("num_items_in_batch") or int(counted.sum())
    return topk_distillation_from_logits(
        student,
        ids.masked_fill(~counted[:, None], -1),
        logprobs,
        divergence="jsd",
        beta=float(beta),
        support="tail" if call.get("add_tail", True) else "renormalized",
        temperature=temperature,
        teacher_temperature=temperature,
        row_weights=counted.double(),
        global_count=items,
        **extra,
    )[0]

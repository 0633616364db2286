"""The draft model's cross entropy: recorded values, and torch's own cross entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from atroposlib.losses.compatible.draft import DraftCrossEntropyLossFn
from atroposlib.losses.compatible.interfaces import LossInputType, LossType
from tests.support import loss_values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", loss_values.cases("DraftCrossEntropyLossFn"), ids=str)
def test_recorded(case: loss_values.Case, dtype: torch.dtype) -> None:
    loss_values.check_outcome(case, loss_values.load(case, dtype), DraftCrossEntropyLossFn())


def test_value_and_gradient_are_torchs_and_the_teacher_has_none() -> None:
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(2, 4, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    student = torch.randn(2, 4, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])
    loss = DraftCrossEntropyLossFn()(
        teacher, student, mask, {"sample_mask": torch.tensor([1, 0])}, torch.tensor(3.0), torch.tensor(9.0)
    )
    expected = functional.cross_entropy(
        student[0, [0, 2, 3]], teacher[0, [0, 2, 3]].softmax(-1), reduction="sum"
    )
    torch.testing.assert_close(loss, expected / 9, rtol=1e-8, atol=0)
    gradient = torch.autograd.grad(loss, [student, teacher], allow_unused=True)
    (expected_gradient,) = torch.autograd.grad(expected / 9, student)
    torch.testing.assert_close(gradient[0], expected_gradient, rtol=1e-8, atol=1e-12)
    assert gradient[1] is None


def test_columns_that_pad_both_vocabularies_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    teacher, student = torch.randn(2, 1, 3, 5, generator=generator)
    padding = torch.full((1, 3, 2), -torch.inf)
    mask, data = torch.ones(1, 3), {"sample_mask": torch.ones(1)}
    counts = torch.tensor(1.0), torch.tensor(3.0)
    plain = DraftCrossEntropyLossFn()(teacher, student, mask, data, *counts)
    padded_student = torch.cat([student, padding], -1).requires_grad_()
    padded = DraftCrossEntropyLossFn()(torch.cat([teacher, padding], -1), padded_student, mask, data, *counts)
    padded.backward()
    torch.testing.assert_close(padded, plain)
    assert torch.isfinite(padded_student.grad).all()


def test_level_and_input() -> None:
    assert DraftCrossEntropyLossFn().loss_type is LossType.TOKEN_LEVEL
    assert DraftCrossEntropyLossFn().input_type is LossInputType.DRAFT

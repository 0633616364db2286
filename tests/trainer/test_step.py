"""One optimizer step: gradients of the global mean however it is split; bad numbers change nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from atroposlib.collate import TrainSequence, train_sequences
from atroposlib.config.trainer import TrainerSettings
from atroposlib.trainer.step import build_optimizer, learning_rate, micro_batches, train_step
from atroposlib.trainer.student import StudentWithLoss, load_student
from tests.support.tiny import VOCAB_SIZE
from tests.trainer.support import as_arrays, make_groups


def make_settings(**changes: Any) -> TrainerSettings:
    return TrainerSettings(model="m", output_dir="o", device="cpu", **changes)


def make_sequences(seed: int = 0) -> list[TrainSequence]:
    groups = make_groups(2, seed=seed)
    groups[0]["masks"][0][3:8] = [-100] * 5
    sequences, _ = train_sequences(as_arrays(groups), max_token_len=64, vocab_size=VOCAB_SIZE)
    return sequences


def parameters_after_a_gradient_step(directory: Path, micro_batch_size: int) -> list[torch.Tensor]:
    """Parameters after plain gradient descent at rate 1 in float64: the change is the gradient."""
    settings = make_settings(micro_batch_size=micro_batch_size, max_grad_norm=1e9)
    student = load_student(directory, settings)
    student.double()
    optimizer = torch.optim.SGD(student.parameters(), lr=1.0)
    result = train_step(student, optimizer, make_sequences(), rate=1.0, settings=settings)
    assert result.applied
    return [parameter.detach() for parameter in student.parameters()]


@pytest.mark.parametrize("micro_batch_size", [1, 3])
def test_gradients_do_not_depend_on_the_split_into_micro_batches(
    tiny_model_dir: Path, micro_batch_size: int
) -> None:
    whole = parameters_after_a_gradient_step(tiny_model_dir, 8)
    split = parameters_after_a_gradient_step(tiny_model_dir, micro_batch_size)
    torch.testing.assert_close(split, whole, rtol=0, atol=1e-10)


def test_reported_loss_is_the_mean_over_rows_with_a_target(tiny_model_dir: Path) -> None:
    settings = make_settings(micro_batch_size=3)
    student = load_student(tiny_model_dir, settings)
    sequences = make_sequences()
    alone = [
        train_step(student, torch.optim.SGD(student.parameters(), lr=0.0), [one], rate=0.0, settings=settings)
        for one in sequences
    ]
    together = train_step(
        student, torch.optim.SGD(student.parameters(), lr=0.0), sequences, rate=0.0, settings=settings
    )
    rows = [len(one) for sequence in sequences for one in sequence.rows.values()]
    expected = sum(result.loss * count for result, count in zip(alone, rows, strict=True)) / sum(rows)
    assert together.loss == pytest.approx(expected, rel=1e-5)
    assert together.captured_mass == pytest.approx(0.701 + 0.16, abs=1e-4)


def test_repeated_steps_lower_the_loss(tiny_model_dir: Path) -> None:
    settings = make_settings(learning_rate=3e-3)
    student = load_student(tiny_model_dir, settings)
    optimizer = build_optimizer(student, settings)
    losses = [
        train_step(student, optimizer, make_sequences(seed), rate=3e-3, settings=settings).loss
        for seed in range(12)
    ]
    assert losses[-1] < 0.5 * losses[0]


def test_a_large_gradient_is_scaled_to_the_limit(tiny_model_dir: Path) -> None:
    settings = make_settings(max_grad_norm=1e-3)
    student = load_student(tiny_model_dir, settings)
    before = [parameter.detach().clone() for parameter in student.parameters()]
    optimizer = torch.optim.SGD(student.parameters(), lr=1.0)
    result = train_step(student, optimizer, make_sequences(), rate=1.0, settings=settings)
    moved = [old - new for old, new in zip(before, student.parameters(), strict=True)]
    assert result.grad_norm > 1e-3
    assert torch.cat([change.flatten() for change in moved]).norm().item() == pytest.approx(1e-3, rel=0.01)


def spoil(student: StudentWithLoss) -> None:
    with torch.no_grad():
        next(student.parameters())[25:60] = torch.nan


def test_a_loss_that_is_not_finite_changes_neither_weights_nor_optimizer(tiny_model_dir: Path) -> None:
    settings = make_settings()
    student = load_student(tiny_model_dir, settings)
    optimizer = build_optimizer(student, settings)
    train_step(student, optimizer, make_sequences(), rate=1e-3, settings=settings)
    spoil(student)
    before = [parameter.detach().clone() for parameter in student.parameters()]
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    result = train_step(student, optimizer, make_sequences(), rate=1e-3, settings=settings)
    assert not result.applied
    assert not math.isfinite(result.loss)
    torch.testing.assert_close([p.detach() for p in student.parameters()], before, equal_nan=True)
    torch.testing.assert_close([state["exp_avg"] for state in optimizer.state.values()], moments)
    assert all(parameter.grad is None for parameter in student.parameters())


def test_weight_decay_touches_matrices_and_not_norms(tiny_model_dir: Path) -> None:
    student = load_student(tiny_model_dir, make_settings())
    decayed, plain = build_optimizer(student, make_settings(weight_decay=0.1)).param_groups
    assert decayed["weight_decay"] == 0.1
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    assert plain["weight_decay"] == 0.0
    assert all(parameter.ndim == 1 for parameter in plain["params"])


def test_learning_rate_rises_linearly_and_stays() -> None:
    settings = make_settings(learning_rate=1.0, warmup_steps=4)
    assert [learning_rate(step, settings) for step in (1, 2, 4, 5, 100)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert learning_rate(1, make_settings(learning_rate=1.0)) == 1.0


def test_linear_schedule_falls_from_the_peak_after_warm_up_to_a_tenth_at_the_last_step() -> None:
    settings = make_settings(learning_rate=1.0, warmup_steps=2, total_steps=12, schedule="linear")
    rates = [learning_rate(step, settings) for step in (1, 2, 7, 12)]
    assert rates == pytest.approx([0.5, 1.0, 0.55, 0.1])
    assert learning_rate(1, make_settings(total_steps=1, schedule="linear", learning_rate=1.0)) == 1.0


def test_micro_batches_hold_every_sequence_once_with_like_lengths_together() -> None:
    sequences = make_sequences()
    parts = micro_batches(sequences, 3)
    lengths = [len(sequence.token_ids) for part in parts for sequence in part]
    assert lengths == sorted((len(sequence.token_ids) for sequence in sequences), reverse=True)
    assert [len(part) for part in parts] == [3, 3, 2]

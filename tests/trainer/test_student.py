"""The student is loaded as its settings say, and its losses see trained positions alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atroposlib.collate import Rows, Source, TrainSequence, collate
from atroposlib.collate.signals import Signals
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import UsageError
from atroposlib.losses.linear import logits_of
from atroposlib.losses.topk_distillation import topk_distillation
from atroposlib.trainer.heads import head_of, hidden_states
from atroposlib.trainer.student import StudentWithLoss, autocast_dtype, choose_device, load_student


def make_settings(**changes: Any) -> TrainerSettings:
    return TrainerSettings(model="m", output_dir="o", device="cpu", **changes)


def make_sequence(length: int, seed: int) -> TrainSequence:
    rng = np.random.default_rng(seed)
    positions = np.arange(2, length - 1)
    ids = np.stack([rng.choice(300, 4, replace=False) for _ in positions])
    logprobs = np.log(rng.dirichlet(np.ones(5), len(positions))[:, :4]).astype(np.float32)
    nothing = np.full(length, np.nan, np.float32)
    return TrainSequence(
        rng.integers(0, 300, length),
        np.ones(length, np.bool_),
        Signals(nothing, nothing, nothing),
        group=0,
        rows={Source("teacher"): Rows(positions, ids, logprobs)},
    )


def loss_of(student: StudentWithLoss, sequences: list[TrainSequence]) -> torch.Tensor:
    """The loss of a step of one micro-batch."""
    counts = [term.count(sequences) for term in student.terms]
    loss: torch.Tensor
    loss, _ = student(collate(sequences), counts)
    return loss


def test_states_at_padded_positions_equal_the_model_with_its_attention_mask(tiny_model_dir: Path) -> None:
    model = load_student(tiny_model_dir, make_settings()).model
    batch = collate([make_sequence(9, 1), make_sequence(17, 2), make_sequence(5, 3)])
    with torch.no_grad():
        whole = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        ours = logits_of(hidden_states(model, batch.input_ids), head_of(model))
    real = batch.attention_mask == 1
    torch.testing.assert_close(ours[real], whole[real], rtol=1e-5, atol=1e-5)


def test_the_head_sees_positions_with_a_target_and_no_others(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = load_student(tiny_model_dir, make_settings(loss="topk_distillation"))
    seen: list[int] = []

    def spied(hidden: torch.Tensor, *rest: Any, **settings: Any) -> Any:
        seen.append(len(hidden))
        return topk_distillation(hidden, *rest, **settings)

    monkeypatch.setattr(student, "terms", [replace(student.terms[0], loss=spied)])  # type: ignore[type-var]  # a Term is a dataclass here
    sequences = [make_sequence(9, 1), make_sequence(17, 2)]
    loss_of(student, sequences)
    assert seen == [sum(len(rows) for one in sequences for rows in one.rows.values())]


def test_weights_are_float32_and_trainable(tiny_model_dir: Path) -> None:
    student = load_student(tiny_model_dir, make_settings())
    assert {parameter.dtype for parameter in student.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in student.parameters())
    assert student.vocab_size == 300


def test_a_directory_without_a_model_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be loaded") as caught:
        load_student(tmp_path, make_settings())
    assert "\n" not in str(caught.value)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="cuda:63"):
        choose_device("cuda:63")


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("auto", "cpu", None),
        ("auto", "cuda", torch.bfloat16),
        ("float32", "cuda", None),
        ("bfloat16", "cpu", torch.bfloat16),
    ],
)
def test_auto_arithmetic_is_bfloat16_on_cuda_and_float32_elsewhere(
    name: str, device: str, expected: torch.dtype | None
) -> None:
    assert autocast_dtype(name, torch.device(device)) == expected


def test_bfloat16_arithmetic_still_accumulates_the_loss_in_float32(tiny_model_dir: Path) -> None:
    sequences = [make_sequence(12, 4)]
    exact = loss_of(load_student(tiny_model_dir, make_settings()), sequences)
    student = load_student(tiny_model_dir, make_settings(dtype="bfloat16"))
    rounded = loss_of(student, sequences)
    rounded.backward()
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=0.05)
    assert {p.grad.dtype for p in student.parameters() if p.grad is not None} == {torch.float32}

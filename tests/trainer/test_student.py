"""The student's logits at trained positions are the model's own, and models that bend them are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, PhiConfig, PhiForCausalLM

from atroposlib.collate import TrainSequence, collate
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import UsageError
from atroposlib.trainer.student import autocast_dtype, choose_device, load_student, logits_at

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_settings(**changes: Any) -> TrainerSettings:
    return TrainerSettings(model="m", output_dir="o", device="cpu", **changes)


def make_sequence(length: int, seed: int) -> TrainSequence:
    rng = np.random.default_rng(seed)
    positions = np.arange(2, length - 1)
    ids = np.stack([rng.choice(300, 4, replace=False) for _ in positions])
    logprobs = np.log(rng.dirichlet(np.ones(5), len(positions))[:, :4]).astype(np.float32)
    return TrainSequence(rng.integers(0, 300, length), positions, ids, logprobs, 0)


def test_logits_at_padded_positions_equal_the_model_with_its_attention_mask(tiny_model_dir: Path) -> None:
    student = load_student(tiny_model_dir, make_settings())
    batch = collate([make_sequence(9, 1), make_sequence(17, 2), make_sequence(5, 3)])
    with torch.no_grad():
        whole = student.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        selected = logits_at(student.model, batch.input_ids, batch.positions)
    torch.testing.assert_close(selected, whole.flatten(0, 1)[batch.positions], rtol=1e-5, atol=1e-5)


def test_the_head_sees_positions_with_a_target_and_no_others(tiny_model_dir: Path) -> None:
    student = load_student(tiny_model_dir, make_settings())
    seen: list[torch.Size] = []
    head = student.model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape))
    sequences = [make_sequence(9, 1), make_sequence(17, 2)]
    student(collate(sequences), 20)
    assert seen == [torch.Size([sum(len(s.positions) for s in sequences), 64])]


def test_weights_are_float32_and_trainable(tiny_model_dir: Path) -> None:
    student = load_student(tiny_model_dir, make_settings())
    assert {parameter.dtype for parameter in student.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in student.parameters())
    assert student.vocab_size == 300


def test_a_bias_of_the_head_is_honoured(tmp_path: Path) -> None:
    model = PhiForCausalLM(PhiConfig(**SMALL))
    torch.nn.init.normal_(model.lm_head.bias, std=3.0)
    model.save_pretrained(tmp_path)
    student = load_student(tmp_path, make_settings())
    ids = torch.arange(6)[None]
    torch.testing.assert_close(logits_at(student.model, ids, torch.arange(6)), student.model(ids).logits[0])


def test_soft_capped_logits_are_refused(tmp_path: Path) -> None:
    Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=0.05)).save_pretrained(
        tmp_path
    )
    with pytest.raises(UsageError, match="soft-capping") as caught:
        load_student(tmp_path, make_settings())
    assert caught.value.code == "usage.model"


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
    batch = collate([make_sequence(12, 4)])
    exact, _ = load_student(tiny_model_dir, make_settings())(batch, 9)
    student = load_student(tiny_model_dir, make_settings(dtype="bfloat16"))
    rounded, _ = student(batch, 9)
    rounded.backward()
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=0.05)
    assert {p.grad.dtype for p in student.parameters() if p.grad is not None} == {torch.float32}

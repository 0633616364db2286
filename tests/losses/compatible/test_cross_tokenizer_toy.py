"""The compatibility modes in the exact toy world: what they come to for models of one text distribution."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atroposlib.losses.compatible.cross_tokenizer import CrossTokenizerDistillationLossFn
from atroposlib.losses.compatible.prepare import prepare_loss_input
from tests.support.projections import written
from tests.support.toy_world import SIDES, sample_text, toy_sequence

TILTS = (0.5, 0.7, 1.0, 1.4, 2.0)
MODES: dict[str, dict[str, bool]] = {"p_kl": {}, "gold": {"gold_loss": True}}


def first_token_projection() -> dict[str, torch.Tensor]:
    """Each student token to the teacher's first token of its bytes, and the markers to each other."""
    student, teacher = SIDES
    ids = [[teacher.encode(token)[0], -1] for token in student.text] + [[teacher.bos, -1]]
    return {"indices": torch.tensor(ids), "likelihoods": torch.tensor([[1.0, 0.0]] * len(ids))}


@functools.cache
def batch() -> tuple[Any, dict[str, torch.Tensor]]:
    sequence = toy_sequence(sample_text(400, seed=0))
    ids = {
        "input_ids": sequence.student_ids,
        "alignment_0_student_chunk_id": sequence.student_chunk_id,
        "teacher_0_input_ids": sequence.teacher_ids,
        "alignment_0_teacher_chunk_id": sequence.teacher_chunk_id,
    }
    tensors = {
        name: torch.as_tensor(np.asarray(value), dtype=torch.int64)[None] for name, value in ids.items()
    }
    chunks = int(tensors["alignment_0_student_chunk_id"].max()) + 1
    return sequence, tensors | {
        "token_mask": torch.ones_like(tensors["input_ids"]),
        "teacher_0_token_mask": torch.ones_like(tensors["teacher_0_input_ids"]),
        "sample_mask": torch.ones(1),
        "alignment_0_pair_valid": torch.ones(1, chunks, dtype=torch.bool),
        "alignment_0_pair_is_correct": torch.ones(1, chunks, dtype=torch.bool),
        "teacher_0_full_logits_ipc": logits(sequence.teacher()),
    }


def logits(rows: np.ndarray[Any, Any]) -> torch.Tensor:
    """Row p of the token p + 1; the last row is never read. What cannot occur has probability 1e-12."""
    logprobs = np.log(np.maximum(rows, 1e-12))
    return torch.as_tensor(np.concatenate([logprobs[1:], logprobs[:1]]))[None]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("proper", [False, True])
def test_no_mode_is_0_or_smallest_for_models_of_one_text_distribution(
    mode: str, proper: bool, tmp_path: Path
) -> None:
    sequence, data = batch()
    loss_fn = CrossTokenizerDistillationLossFn(
        MODES[mode]
        | {
            "projection_matrix_paths": [written(first_token_projection(), tmp_path / "toy")],
            "student_vocab_size": len(SIDES[0].text) + 1,
            "teacher_vocab_sizes": [len(SIDES[1].text) + 1],
            "proper_divergence": proper,
        }
    )
    found = {}
    for tilt in TILTS:
        student = logits(sequence.student(tilt)).requires_grad_()
        _, metrics = loss_fn(data, None, torch.tensor(1.0), **prepare_loss_input(student, data, loss_fn))
        found[tilt] = metrics["kl_loss"].item()
    # The tilt that minimises is the grid's end; the same in an earlier, independent study of this world.
    assert found[1.0] > 1.0
    assert min(found, key=found.__getitem__) == 0.5

"""A real teacher against itself: what truncation to its top-k alone leaves of the losses."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from atroposlib.collate.across import ChunkArrays, TeacherRows, TokenizerPair, chunk_arrays
from atroposlib.losses.across import ChunkTargets, chunk_likelihood, quotient_distillation
from atroposlib.losses.head import Head
from tests.support.real_gemma import gemma_dir
from tests.support.real_tokenizers import directory_of

__all__ = ["gemma_dir"]

pytestmark = pytest.mark.model

TEXT = (
    "Question: Natalia sold clips to 48 of her friends in April, and then she sold half as many in May. "
    "How many did she sell altogether?\nAnswer: In May she sold 24 clips, so 48 + 24 = 72 clips, "
    "which surprised everyone."
)
K = 20


def as_student_too(pair: TokenizerPair) -> TokenizerPair:
    """The pair in which the teacher is its own student, with the components of the two."""
    components = pair.teacher.component[:-1]
    listed = np.flatnonzero(components >= 0)
    return replace(
        pair,
        student=pair.teacher,
        streamers=(pair.streamers[1], pair.streamers[1]),
        member_offsets=np.append(0, np.cumsum(pair.teacher_sizes)),
        members=listed[np.argsort(components[listed], kind="stable")],
    )


@pytest.fixture(scope="module")
def against_itself(gemma_dir: Path) -> tuple[torch.Tensor, Head, ChunkArrays]:
    """Gemma's hidden states and head, and its own top-k as targets."""
    from transformers import AutoModelForCausalLM

    pair = as_student_too(TokenizerPair.load(directory_of("smollm2"), gemma_dir))
    ids = np.array(Tokenizer.from_file(str(gemma_dir / "tokenizer.json")).encode(TEXT).ids)
    model = AutoModelForCausalLM.from_pretrained(gemma_dir, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model.model(torch.tensor(ids)[None]).last_hidden_state[0]
        logprobs = (hidden @ model.lm_head.weight.t()).log_softmax(-1)
    rows = TeacherRows(0, np.full((len(ids), K + 1), -1), np.full((len(ids), K + 1), -np.inf))
    for row in range(1, len(ids)):
        top = logprobs[row - 1].topk(K).indices.tolist()
        listed = [int(ids[row]), *(number for number in top if number != ids[row])]
        rows.ids[row, : len(listed)] = listed
        rows.logprobs[row, : len(listed)] = logprobs[row - 1, listed].numpy()
    arrays = chunk_arrays(
        pair, ids, np.ones(len(ids), dtype=np.bool_), ids, rows, np.arange(len(ids)), np.arange(len(ids))
    )
    return hidden[arrays.positions], Head(model.lm_head.weight.detach()), arrays


@pytest.mark.parametrize(
    "loss",
    [
        quotient_distillation,
        functools.partial(quotient_distillation, path=False),
        functools.partial(quotient_distillation, path=False, residual_weight=1.0),
        functools.partial(quotient_distillation, divergence="reverse"),
        functools.partial(quotient_distillation, divergence="jsd"),
    ],
    ids=["path", "cells", "residual", "reverse", "jsd"],
)
def test_quotient_losses_are_below_five_thousandths_of_a_nat_a_cut(loss: Any, against_itself: Any) -> None:
    hidden, head, arrays = against_itself
    found, metrics = loss(hidden, head, ChunkTargets.of(arrays), global_count=arrays.cuts)
    assert arrays.cuts > 40
    assert 0 <= float(found) < 0.005
    # Equal models leave the same outside of the cells.
    tails = [float(metrics[name]) / arrays.cuts for name in ("student_tail_mass", "teacher_tail_mass")]
    assert abs(tails[0] - tails[1]) < 0.01


def test_chunk_likelihood_is_zero_but_for_what_the_boundary_terms_are_estimated_from(
    against_itself: Any,
) -> None:
    hidden, head, arrays = against_itself
    targets = ChunkTargets.of(arrays)
    debiased, _ = chunk_likelihood(hidden, head, targets, global_count=arrays.safe_tokens)
    raw, _ = chunk_likelihood(hidden, head, targets, debiased=False, global_count=arrays.minimal_tokens)
    assert float(debiased) < 0.002
    assert float(raw) < 1e-6

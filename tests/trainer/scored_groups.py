"""Groups that carry all that any loss reads, as an environment posts them and as the wire hands them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from atroposlib.align.aligner import TokenAligner
from atroposlib.types import Group
from atroposlib.wire.frame import decode_group, encode_group
from tests.support.tiny_teacher import FIRST_MARKER
from tests.trainer.support import make_groups

TEXTS = (
    "the seven other verses in the end",
    " the never ending thesis, in a severe winter",
    "in the inn the thin hen ate a seed",
    "seven severe riverside winters",
)
PROMPT = 3
"""Student tokens that are not trained."""


def all_groups(student: Path, teacher: Path) -> list[dict[str, Any]]:
    """Two groups of a teacher with the student's tokenizer, and two of one with another."""
    rng = np.random.default_rng(3)
    groups = make_groups(2) + other_groups(student, teacher)
    for group in groups:
        add_policies(group, rng)
    return groups


def add_policies(group: dict[str, Any], rng: np.random.Generator) -> None:
    """Give a group scores, and logprobs of the policy that sampled it and of a reference."""
    group["scores"] = rng.normal(size=len(group["tokens"])).tolist()
    for name in ("inference_logprobs", "ref_logprobs"):
        group[name] = [
            [1.0] * PROMPT + (-rng.exponential(size=len(ids) - PROMPT)).tolist() for ids in group["tokens"]
        ]


def other_groups(student: Path, teacher: Path, *, columns: int = 5) -> list[dict[str, Any]]:
    """Two groups of two sequences, scored by the model in ``teacher`` on its own tokens.

    Args:
        student: Directory of the student.
        teacher: Directory of the teacher, a model with its tokenizer.
        columns: The teacher's top-k.
    """
    ours, theirs = (AutoTokenizer.from_pretrained(one) for one in (student, teacher))
    aligner = TokenAligner(ours, theirs)
    model = AutoModelForCausalLM.from_pretrained(teacher)
    return [
        _group(
            f"other-{first}",
            TEXTS[first : first + 2],
            (ours, theirs),
            aligner,
            lambda ids: scored(model, ids, columns),
        )
        for first in (0, 2)
    ]


def _group(name: str, texts: Any, tokenizers: Any, aligner: TokenAligner, score: Any) -> dict[str, Any]:
    ours, theirs = tokenizers
    tokens = [ours.encode(text, add_special_tokens=False) for text in texts]
    read = [[FIRST_MARKER, *theirs.encode(text, add_special_tokens=False)] for text in texts]
    aligned = [aligner.align_ids(a, b) for a, b in zip(tokens, read, strict=True)]
    rows = [score(ids) for ids in read]
    entry = {
        "name": "other",
        "weight": 1.0,
        "same_tokenizer": False,
        "temperature": 1.0,
        "tokenizer_fingerprint": aligner.teacher.fingerprint,
        "tokens": read,
        "token_ids": [ids for ids, _ in rows],
        "logprobs": [logprobs for _, logprobs in rows],
        "student_chunk_id": [one.student_chunk_id.tolist() for one in aligned],
        "teacher_chunk_id": [one.teacher_chunk_id.tolist() for one in aligned],
    }
    masks = [[-100] * PROMPT + ids[PROMPT:] for ids in tokens]
    return {"tokens": tokens, "masks": masks, "scores": [0.0, 0.0], "group_id": name, "teachers": [entry]}


@torch.no_grad()
def scored(model: Any, ids: list[int], columns: int) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and logprobs [U][columns + 1] of a sequence; the token that stands there first."""
    logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    width = columns + 1
    all_ids, all_logprobs = [[-1] * width], [[-9999.0] * width]
    for at, token in enumerate(ids[1:]):
        top = [one for one in logprobs[at].topk(columns).indices.tolist() if one != token]
        named = [token, *top]
        all_ids.append(named + [-1] * (width - len(named)))
        all_logprobs.append(logprobs[at, named].tolist() + [-9999.0] * (width - len(named)))
    return all_ids, all_logprobs


def through_wire(groups: list[dict[str, Any]]) -> list[Group]:
    """The groups as a trainer's client hands them out."""
    frames: list[Any] = groups
    return [decode_group(encode_group(group, logprob_dtype="float32")) for group in frames]

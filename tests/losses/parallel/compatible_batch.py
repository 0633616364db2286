"""One batch for the compatibility classes: whole rows on every rank, the student's output cut both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.compatible.prepare import prepare_loss_input
from atroposlib.losses.groups import Groups
from atroposlib.losses.head import Head
from tests.losses.parallel.batch import FACTOR, gradient_of
from tests.losses.parallel.mesh import Mesh

B, T, U, WIDTH, VOCABULARY, TEACHER = 2, 8, 6, 5, 24, 20
"""Rows, student and teacher positions, hidden width, ids of both."""

ZIGZAG = torch.tensor([0, 1, 6, 7, 2, 3, 4, 5])
"""Positions as load-balanced context ranks hold them, the first rank's first."""

STEP_TOKENS = 23
"""Trained tokens of the whole step: more than this batch has."""


@dataclass(frozen=True)
class How:
    """How the student's output comes.

    Attributes:
        hidden: As hidden states and head instead of logits.
        zigzag: At load-balanced positions instead of consecutive ones.
    """

    hidden: bool = False
    zigzag: bool = False


def batch() -> dict[str, Any]:
    """Masks, rollout logprobs, and three teachers: another tokenizer's, then two of the student's."""
    draw = torch.Generator().manual_seed(31)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    token_mask = torch.ones(B, T)
    token_mask[0, :2] = token_mask[1, :4] = 0
    data: dict[str, Any] = {
        "input_ids": torch.randint(VOCABULARY, (B, T), generator=draw),
        "input_lengths": torch.full((B,), T),
        "token_mask": token_mask,
        "sample_mask": torch.ones(B),
        "advantages": normal(B, T),
        "rewards": torch.tensor([1.0, -1.0]),
        "returns": normal(B, T),
        "values": normal(B, T),
    }
    for name in ("prev_logprobs", "generation_logprobs", "reference_policy_logprobs"):
        data[name] = -3.0 + 0.5 * normal(B, T)
    data["teacher_topk_indices"] = torch.randn(B, T, VOCABULARY, generator=draw).topk(4).indices
    data["teacher_topk_indices"][0, 3, 1] = -1
    data["teacher_topk_logits"] = normal(B, T, 4)
    return data | _teachers(normal, draw)


def _teachers(normal: Callable[..., Tensor], draw: torch.Generator) -> dict[str, Any]:
    correct = torch.tensor([[True, True, False, True], [True, False, True, False]])
    teachers: dict[str, Any] = {
        "teacher_0_full_logits_ipc": 2 * normal(B, U, TEACHER),
        "teacher_0_input_ids": torch.randint(TEACHER, (B, U), generator=draw),
        "teacher_0_token_mask": torch.tensor([[0.0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]),
        "alignment_0_student_chunk_id": torch.tensor(
            [[-1, 0, 0, 1, 1, 2, 3, 3], [-1, -1, 0, 1, 1, 1, 2, -1]]
        ),
        "alignment_0_teacher_chunk_id": torch.tensor([[-1, 0, 1, 1, 2, 3], [-1, 0, 0, 1, 2, -1]]),
        "alignment_0_pair_valid": torch.tensor([[True, True, True, True], [True, True, True, False]]),
        "alignment_0_pair_is_correct": correct,
    }
    for i in (1, 2):
        teachers[f"teacher_{i}_full_logits_ipc"] = 2 * normal(B, T, VOCABULARY)
    return teachers


def projection() -> dict[str, Tensor]:
    """Rows of two columns; some of them an exact map."""
    draw = torch.Generator().manual_seed(37)
    indices = torch.stack([torch.randperm(TEACHER, generator=draw)[:2] for _ in range(VOCABULARY)])
    likelihoods = torch.rand(VOCABULARY, 2, generator=draw)
    likelihoods /= likelihoods.sum(-1, keepdim=True)
    exact = torch.arange(0, VOCABULARY, 2)
    indices[exact, 0], indices[exact, 1] = exact // 2, -1
    likelihoods[exact, 0], likelihoods[exact, 1] = 1.0, 0.0
    return {"indices": indices, "likelihoods": likelihoods}


def with_teachers(teachers: list[int], *, sparse: bool = False) -> dict[str, Any]:
    """The batch with these teachers, numbered anew; with ``sparse``, as a server ships them."""
    whole = batch()
    data = {name: value for name, value in whole.items() if not name.startswith(("teacher_", "alignment_"))}
    for new, old in enumerate(teachers):
        for name, value in whole.items():
            for kind in ("teacher", "alignment"):
                if name.startswith(f"{kind}_{old}_"):
                    data[name.replace(f"_{old}_", f"_{new}_", 1)] = value
        if sparse:
            data |= _shipped(new, data.pop(f"teacher_{new}_full_logits_ipc"))
    return data


def _shipped(i: int, logits: Tensor) -> dict[str, Tensor]:
    """The ten most probable columns, row p of token p."""
    logprobs, ids = logits.log_softmax(-1).topk(10)
    return {
        f"teacher_{i}_topk_ids": torch.cat([torch.full_like(ids[:, :1], -1), ids[:, :-1]], 1),
        f"teacher_{i}_topk_logprobs": torch.cat(
            [torch.full_like(logprobs[:, :1], -torch.inf), logprobs[:, :-1]], 1
        ),
    }


def computed(mesh: Mesh, loss_fn: Any, data: dict[str, Any], how: How, **groups: Any) -> dict[str, Tensor]:
    """Loss, metrics and whole gradients of a class; its loss is the whole batch's on every rank."""
    order = ZIGZAG if how.zigzag and mesh.groups.context is not None else torch.arange(T)
    sizes = (T // 2, T // 2)
    at = mesh.own_positions(order, sizes)
    tensor, context = mesh.groups.tensor, mesh.groups.context
    student, head = _student(mesh, how, order, sizes)
    inputs = prepare_loss_input(
        student,
        data,
        loss_fn,
        head=head,
        tp_group=tensor,
        cp_group=context,
        positions=at,
    )
    loss, metrics = loss_fn(
        data=data,
        global_valid_seqs=torch.tensor(5.0),
        global_valid_toks=torch.tensor(float(STEP_TOKENS)),
        **inputs,
        **groups,
    )
    (FACTOR * loss).backward()
    whole = {"loss": loss.detach()}
    back = order.argsort()
    if head is None:
        columns = Mesh(Groups(tensor=tensor)).whole_vocabulary(gradient_of(student), dim=2)
        whole["logits"] = mesh.whole_positions(columns, dim=1)[:, back]
    else:
        whole["hidden"] = mesh.whole_positions(gradient_of(student), dim=1)[:, back]
        whole["weight"] = mesh.whole_vocabulary(gradient_of(head.weight))
    return whole | {f"metric {name}": torch.as_tensor(value).detach() for name, value in metrics.items()}


def _student(mesh: Mesh, how: How, order: Tensor, sizes: tuple[int, int]) -> tuple[Tensor, Head | None]:
    draw = torch.Generator().manual_seed(41)
    width = WIDTH if how.hidden else VOCABULARY
    rows = 2 * torch.randn(B, T, width, generator=draw, dtype=torch.float64)
    mine = mesh.own_positions(rows[:, order].requires_grad_(), sizes, dim=1)
    if not how.hidden:
        return mesh.own_vocabulary(mine, dim=2), None
    weight = torch.randn(VOCABULARY, WIDTH, generator=draw, dtype=torch.float64).requires_grad_()
    return mine, Head(mesh.own_vocabulary(weight), soft_cap=4.0)

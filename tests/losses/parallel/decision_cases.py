"""Decisions that ranks with unlike data must make alike, and teacher logits that come as handles."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from atroposlib.losses.compatible import full_logits_ipc
from atroposlib.losses.compatible.cross_tokenizer import CrossTokenizerDistillationLossFn
from atroposlib.losses.compatible.draft import DraftCrossEntropyLossFn
from atroposlib.losses.compatible.prepare import prepare_loss_input
from atroposlib.losses.compatible.value import MseValueLossFn
from atroposlib.losses.groups import Group, Groups
from tests.losses.parallel.batch import FACTOR, gradient_of
from tests.losses.parallel.compatible_batch import (
    STEP_TOKENS,
    VOCABULARY,
    B,
    How,
    T,
    U,
    batch,
    computed,
    projection,
    with_teachers,
)
from tests.losses.parallel.mesh import Case, Mesh
from tests.support.projections import written

ALL_COLUMNS = {"vocab_topk": 100, "dynamic_loss_scaling": False}
SELECT = ALL_COLUMNS | {"kd_loss_mode": "select_teacher"}
WEIGHTS = ALL_COLUMNS | {"sum_weights_metric": "ce", "alpha": 0.2}
SCALED = {"vocab_topk": 100, "dynamic_loss_scaling": True}


def decision_cases() -> dict[str, Case]:
    """Teachers of which each rank alone would choose another; ranks without a trained row; handles."""
    halves, rows = torch.arange(T) < T // 2, torch.tensor([[True], [False]])
    cases: dict[str, Case] = {
        "select_teacher: positions disagree": partial(_positions, SELECT, halves.expand(B, T)),
        "select_teacher: rows disagree": partial(_rows, [1, 2], SELECT, rows.expand(B, T), False),
        "select_teacher: a rank without a trained row": partial(_rows, [0, 1], SELECT, None, True),
        "dynamic weights: rows disagree": partial(_rows, [1, 2], WEIGHTS, rows.expand(B, T), False),
        "dynamic scaling: rows disagree": partial(_rows, [0, 1], SCALED, rows.expand(B, T), False),
        "dynamic scaling: a rank without a trained row": partial(_rows, [0, 1], SCALED, None, True),
        "full logits as handles": _handles,
        "MseValueLossFn": _value,
        "DraftCrossEntropyLossFn": _draft,
    }
    return cases


def _preferring(data: dict[str, Any], first: Tensor) -> dict[str, Any]:
    """The batch with a first teacher that knows the next token where ``first`` [B, T], a second elsewhere."""
    labels = torch.cat([data["input_ids"][:, 1:], data["input_ids"][:, :1]], 1)[..., None]
    made = dict(data)
    for i, known in enumerate((first, ~first)):
        name = f"teacher_{i}_full_logits_ipc"
        if data[name].shape[:2] == first.shape:
            made[name] = data[name].scatter_add(-1, labels, 8.0 * known[..., None].double())
    return made


def _loss(teachers: list[int], settings: dict[str, Any]) -> CrossTokenizerDistillationLossFn:
    with tempfile.TemporaryDirectory() as folder:
        path = written(projection(), Path(folder) / "projection")
        paths = [path if teacher == 0 else None for teacher in teachers]
        return CrossTokenizerDistillationLossFn(settings | {"projection_matrix_paths": paths})


def _positions(settings: dict[str, Any], first: Tensor, mesh: Mesh) -> dict[str, Tensor]:
    data = _preferring(with_teachers([1, 2]), first)
    groups = {"tp_group": mesh.groups.tensor, "cp_group": mesh.groups.context}
    return computed(mesh, _loss([1, 2], settings), data, How(), **groups)


def _rows(
    teachers: list[int], settings: dict[str, Any], first: Tensor | None, untrained: bool, mesh: Mesh
) -> dict[str, Tensor]:
    """The context group's ranks hold different rows here, as data parallelism has it."""
    data = with_teachers(teachers)
    if first is not None:
        data = _preferring(data, first)
    if untrained:
        data["sample_mask"] = torch.tensor([1.0, 0.0])
    data = {name: mesh.own_positions(value, (1, 1)) for name, value in data.items()}
    draw = torch.Generator().manual_seed(43)
    whole = (2 * torch.randn(B, T, VOCABULARY, generator=draw, dtype=torch.float64)).requires_grad_()
    logits = mesh.own_vocabulary(mesh.own_positions(whole, (1, 1)), dim=2)
    loss_fn = _loss(teachers, settings)
    tensor, data_group = mesh.groups.tensor, mesh.groups.context
    loss, metrics = loss_fn(
        data=data,
        global_valid_seqs=None,
        global_valid_toks=torch.tensor(float(STEP_TOKENS)),
        **prepare_loss_input(logits, data, loss_fn, tp_group=tensor),
        tp_group=tensor,
        dp_group=data_group,
    )
    (FACTOR * loss).backward()
    columns = Mesh(Groups(tensor=tensor)).whole_vocabulary(gradient_of(logits), dim=2)
    decided = ("selected_teacher", "weight_t0", "weight_t1", "kl_loss_scale")
    return {
        "loss": mesh.context_sum(loss),
        "logits": mesh.whole_positions(columns),
        **{f"metric {name}": torch.as_tensor(metrics[name]) for name in decided if name in metrics},
    }


def _handles(mesh: Mesh) -> dict[str, Tensor]:
    """Both kinds of teachers, cut as the student is; behind the rows is padding that must not be read."""
    data = with_teachers([0, 1])
    for i, length in enumerate((U, T)):
        name = f"teacher_{i}_full_logits_ipc"
        padding = torch.full((B, 4 - length % 4, data[name].shape[2]), torch.nan, dtype=torch.float64)
        data[name] = _exported(mesh, torch.cat([data[name], padding], 1))
    groups = {"tp_group": mesh.groups.tensor, "cp_group": mesh.groups.context}
    with _memory_as_bytes():
        return computed(mesh, _loss([0, 1], ALL_COLUMNS), data, How(), **groups)


def _exported(mesh: Mesh, logits: Tensor) -> list[full_logits_ipc.SampleHandles]:
    rows = logits.shape[1] // (1 if mesh.groups.context is None else 2)
    part = mesh.own_vocabulary(mesh.own_positions(logits, (rows, rows), dim=1), dim=2)
    mine = full_logits_ipc.export_full_logits(part[None], B, groups=mesh.groups, payload=_bytes_of)
    if mesh.groups == Groups():
        return full_logits_ipc.gathered_shards([mine])
    by_rank = [mine] * dist.get_world_size()
    dist.all_gather_object(by_rank, mine)
    return full_logits_ipc.gathered_shards(by_rank)


def _bytes_of(memory: Tensor) -> tuple[tuple[int, ...], bytes]:
    return tuple(memory.shape), memory.contiguous().numpy().tobytes()


@contextmanager
def _memory_as_bytes() -> Iterator[None]:
    """Opens what :func:`_bytes_of` names, where there is no CUDA memory."""

    def opened(payload: tuple[tuple[int, ...], bytes]) -> Tensor:
        return torch.frombuffer(bytearray(payload[1]), dtype=torch.float64).view(payload[0])

    with patch.object(full_logits_ipc, "open_cuda", opened):
        yield


def _value(mesh: Mesh) -> dict[str, Tensor]:
    """A value head has no vocabulary: tensor ranks hold the same, and here context ranks hold positions."""
    data = batch()
    loss_fn = MseValueLossFn({"cliprange": 0.5})
    draw = torch.Generator().manual_seed(47)
    whole = torch.randn(B, T, 1, generator=draw, dtype=torch.float64).requires_grad_()
    values = mesh.own_positions(whole, (T // 2, T // 2), dim=1)
    inputs = prepare_loss_input(values, data, loss_fn, cp_group=mesh.groups.context)
    loss, metrics = loss_fn(
        data=data,
        global_valid_seqs=torch.tensor(5.0),
        global_valid_toks=torch.tensor(float(STEP_TOKENS)),
        **inputs,
    )
    (FACTOR * loss).backward()
    return {"loss": loss.detach(), "logits": mesh.whole_positions(gradient_of(values), dim=1)} | {
        f"metric {name}": torch.as_tensor(value) for name, value in metrics.items()
    }


def _draft(mesh: Mesh) -> dict[str, Tensor]:
    """Both vocabularies cut over the tensor ranks; all positions on each."""
    data = batch()
    group: Group | None = mesh.groups.tensor
    loss_fn = DraftCrossEntropyLossFn(vocab_parallel_group=group)
    draw = torch.Generator().manual_seed(53)
    teacher = 2 * torch.randn(B, T, VOCABULARY, generator=draw, dtype=torch.float64)
    whole = (2 * torch.randn(B, T, VOCABULARY, generator=draw, dtype=torch.float64)).requires_grad_()
    drafted = mesh.own_vocabulary(whole, dim=2)
    data["student_logits"] = drafted
    loss = loss_fn(
        data=data,
        global_valid_seqs=torch.tensor(5.0),
        global_valid_toks=torch.tensor(float(STEP_TOKENS)),
        **prepare_loss_input(mesh.own_vocabulary(teacher, dim=2), data, loss_fn, tp_group=group),
    )
    (FACTOR * loss).backward()
    columns = Mesh(Groups(tensor=group)).whole_vocabulary(gradient_of(drafted), dim=2)
    return {"loss": loss.detach(), "logits": columns}

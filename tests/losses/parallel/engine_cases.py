"""The engine under a mesh: both ways of it, and the shapes where ranks have unequal work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from atroposlib.losses.groups import global_count, summed_replicated
from atroposlib.losses.head import Head, vocabulary_of
from atroposlib.losses.linear import Figures, Metrics, read_rows, sum_over_rows
from atroposlib.losses.topk_readout import TopKReadout
from tests.losses.parallel.mesh import Case, Mesh

ROWS, WIDTH, PADDED = 11, 5, 24
"""Rows, hidden width, and rows of the head, which 2 and 4 ranks share equally."""


@dataclass(frozen=True)
class Setting:
    """One case: what the head is, which ids are listed, and who has which rows."""

    way: str = "forward"
    listed: int = 4
    ids: str = "any"
    sizes: tuple[int, ...] = (4, 7)
    tokens: int | None = None
    bias: bool = False
    scale: float = 1.0
    soft_cap: float | None = None
    temperature: float = 1.0
    dtype: torch.dtype = torch.float64


SETTINGS = {
    "gradient in forward": Setting(),
    "recompute": Setting(way="recompute"),
    "float32": Setting(dtype=torch.float32),
    "head bias, scale, soft cap and temperature": Setting(
        bias=True, scale=1.3, soft_cap=2.0, temperature=1.7, way="recompute"
    ),
    "the same, gradient in forward": Setting(bias=True, scale=1.3, soft_cap=2.0, temperature=1.7),
    "every token listed": Setting(listed=PADDED, ids="all"),
    "every token listed beside padding": Setting(listed=21, ids="all", tokens=21),
    "no listed id on all ranks but the first": Setting(ids="first"),
    "a context rank without rows": Setting(sizes=(ROWS, 0)),
    "a context rank without rows, recompute": Setting(sizes=(0, ROWS), way="recompute"),
    "padding rows of the head": Setting(tokens=21, bias=True, soft_cap=3.0),
    "padding rows that fill more than one rank": Setting(tokens=9, way="recompute"),
    "a loss that joins rows": Setting(way="joined"),
    "a loss that joins rows, none here": Setting(way="joined", sizes=(0, ROWS)),
}


def engine_cases() -> dict[str, Case]:
    """One case a setting."""
    return {name: partial(engine, setting) for name, setting in SETTINGS.items()}


def engine(setting: Setting, mesh: Mesh) -> dict[str, Tensor]:
    """Loss, metrics and gradients of a cross-entropy of listed ids and tail, on one mesh."""
    draw = torch.Generator().manual_seed(7)
    hidden = torch.randn(ROWS, WIDTH, generator=draw, dtype=setting.dtype).requires_grad_()
    weight = torch.randn(PADDED, WIDTH, generator=draw, dtype=setting.dtype).requires_grad_()
    bias = torch.randn(PADDED, generator=draw, dtype=setting.dtype).requires_grad_()
    q = torch.rand(ROWS, setting.listed + 1, generator=draw, dtype=setting.dtype)
    ids = _ids(setting, draw)
    mine = mesh.own_positions(hidden, setting.sizes)
    slices = mesh.own_vocabulary(weight), mesh.own_vocabulary(bias) if setting.bias else None
    head = Head(*slices, setting.scale, setting.soft_cap, setting.tokens)
    own_ids, own_q = mesh.own_positions(ids, setting.sizes), mesh.own_positions(q, setting.sizes)
    count = global_count(mine.shape[0], mesh.groups.context)
    loss, metrics = _loss(setting, mesh, mine, head, own_ids, own_q / count)
    (3 * loss).backward()
    joined = setting.way == "joined"
    whole = {
        "loss": loss.detach() if joined else mesh.context_sum(loss),
        "count": torch.tensor(count),
        "hidden": mesh.whole_positions(_gradient(mine)),
        "weight": mesh.whole_vocabulary(_gradient(slices[0])),
    }
    if slices[1] is not None:
        whole["bias"] = mesh.whole_vocabulary(_gradient(slices[1]))
    for name, value in metrics.items():
        whole[f"metric {name}"] = mesh.context_sum(value)
    return whole


def _loss(
    setting: Setting, mesh: Mesh, hidden: Tensor, head: Head, ids: Tensor, q: Tensor
) -> tuple[Tensor, Metrics]:
    readout = TopKReadout(ids, vocabulary_of(head, mesh.groups))

    def row_loss(figures: Figures, at: slice) -> tuple[Tensor, Metrics]:
        listed, tail = figures[:2]
        present = ids[at] >= 0
        loss = -(torch.where(present, q[at, :-1] * listed, 0.0).sum() + (q[at, -1] * tail).sum())
        return loss, {"tail": tail.detach().exp().sum()}

    how = {"temperature": setting.temperature, "groups": mesh.groups, "chunk_rows": 3}
    if setting.way != "joined":
        return sum_over_rows(hidden, head, readout, row_loss, recompute=setting.way == "recompute", **how)
    figures = read_rows(hidden, head, readout, **how)
    local, _ = row_loss(figures, slice(0, hidden.shape[0]))
    # Any loss that is not a sum over ranks will do.
    return summed_replicated(local, mesh.groups.context) ** 2, {}


def _ids(setting: Setting, draw: torch.Generator) -> Tensor:
    """int64 [ROWS, listed]: distinct in a row, with a hole and a row of holes."""
    among = {"any": setting.tokens or PADDED, "all": setting.listed, "first": PADDED // 4}[setting.ids]
    ids = torch.stack([torch.randperm(among, generator=draw)[: setting.listed] for _ in range(ROWS)])
    if setting.ids != "all":
        ids[2, 1] = -1
        ids[5] = -1
    return ids


def _gradient(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None, "a rank without rows must still give a gradient"
    return leaf.grad

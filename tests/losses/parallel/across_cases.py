"""Losses across tokenizers under a mesh, with chunks whose rows lie on different context ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.across.chunk_likelihood import chunk_likelihood
from atroposlib.losses.across.quotient_distillation import quotient_distillation
from atroposlib.losses.across.targets import ChunkTargets, Vocabulary
from tests.losses.parallel.batch import FACTOR, ROWS, VOCABULARY, gradient_of, part_of, whole_results
from tests.losses.parallel.mesh import Case, Mesh

ORDER = torch.tensor([0, 1, 5, 6, 2, 3, 4, 7, 8, 9, 10])
"""Rows as the context ranks have them, the first rank's first: no rank has a run."""


def across_cases() -> dict[str, Case]:
    """Every way of the two losses."""
    quotient: dict[str, dict[str, Any]] = {
        "path": {},
        "reverse": {"path": False, "divergence": "reverse"},
        "jsd": {"divergence": "jsd"},
        "residual": {"path": False, "residual_weight": 0.5},
    }
    likelihood: dict[str, dict[str, Any]] = {
        "safe chunks": {},
        "tau": {"tau": 2.0, "direction": "reverse"},
        "minimal chunks": {"debiased": False},
    }
    cases: dict[str, Case] = {}
    for name, settings in quotient.items():
        cases[f"quotient_distillation: {name}"] = partial(_case, quotient_distillation, settings)
    for name, settings in likelihood.items():
        cases[f"chunk_likelihood: {name}"] = partial(_case, chunk_likelihood, settings)
    for function in (quotient_distillation, chunk_likelihood):
        name = f"{function.__name__}: a context rank without rows"
        cases[name] = partial(_case, function, {}, sizes=(0, ROWS))
    return cases


def _case(
    function: Callable[..., Any], settings: dict[str, Any], mesh: Mesh, sizes: tuple[int, ...] = (4, 7)
) -> dict[str, Tensor]:
    part = part_of(mesh, sizes)
    targets = targets_of_rows()
    back = torch.arange(ROWS)
    if mesh.groups.context is not None:
        # The batch's hidden states are taken to lie in that order.
        targets = replace(targets, own=mesh.own_positions(ORDER, sizes))
        back = ORDER.argsort()
        part = replace(part, hidden=mesh.own_positions(_ordered(), sizes))
    # Another count than the batch's own: part of a larger step.
    loss, metrics = function(
        part.hidden, part.head, targets, global_count=17, groups=mesh.groups, chunk_rows=3, **settings
    )
    (FACTOR * loss).backward()
    whole = whole_results(part, mesh.context_sum(loss))
    whole["hidden"] = mesh.whole_positions(gradient_of(part.hidden))[back]
    return whole | {f"metric {name}": mesh.context_sum(value) for name, value in metrics.items()}


def _ordered() -> Tensor:
    return part_of(Mesh()).hidden.detach()[ORDER].requires_grad_()


def targets_of_rows() -> ChunkTargets:
    """Eleven rows of made-up targets: three safe chunks with a path, and two cuts without one."""
    draw = torch.Generator().manual_seed(23)
    rows = torch.arange(ROWS)
    cells = torch.stack([torch.randperm(6, generator=draw)[:3] for _ in rows])
    cells[4, 2] = cells[9, 1] = -1
    mass = torch.rand(ROWS, 3, generator=draw, dtype=torch.float64)
    mass = torch.where(cells >= 0, 0.8 * mass / mass.sum(-1, keepdim=True), 0.0)
    tail = torch.full((ROWS,), 0.05, dtype=torch.float64)
    observed = torch.tensor([0, 0, 1, 3, 0, 1, 2, 0, 1, 0, 2])
    of_observed = torch.cat([mass, tail[:, None]], -1).gather(-1, observed[:, None]).squeeze(-1)
    boundary = torch.full((ROWS,), 0.7, dtype=torch.float64).log()
    return ChunkTargets(
        vocabulary=_vocabulary(draw),
        positions=rows,
        tokens=torch.randint(VOCABULARY, (ROWS,), generator=draw),
        before=torch.randint(6, (ROWS, 2), generator=draw),
        cut=torch.tensor([1, 0, 0, 1, 0, 0, 0, 1, 1, 0, 1]).bool(),
        cells=cells,
        cell_mass=mass,
        cell_open=torch.rand(ROWS, 3, generator=draw) < 0.5,
        tail_mass=tail,
        observed_cell=observed,
        sampled_cell=torch.arange(ROWS) % 4 == 0,
        same_cell=torch.ones(ROWS, dtype=torch.bool),
        boundary=boundary,
        chunk_start=torch.tensor([0, 0, 0, 3, 3, 3, 3, -1, 8, 8, -1]),
        chunk_end=torch.tensor([3, -1, -1, 7, -1, -1, -1, -1, 10, -1, -1]),
        path=boundary + (0.5 * of_observed).log(),
        minimal_chunk=torch.tensor([0, 0, 1, 2, 2, 2, 3, -1, 4, 4, -1]),
        minimal_surprisal=torch.tensor([3.0, 1.0, 5.0, 0.5, 2.0], dtype=torch.float64),
    )


def _vocabulary(draw: torch.Generator) -> Vocabulary:
    """Six components of eleven of the ids, whose ids share a first byte; the others begin with any symbol."""
    members = torch.randperm(VOCABULARY, generator=draw)[:11]
    offsets = torch.tensor([0, 3, 5, 7, 8, 9, 11])
    first = torch.randint(6, (VOCABULARY,), generator=draw)
    for component in range(6):
        first[members[offsets[component] : offsets[component + 1]]] = component
    first[20] = 256
    safe = torch.rand(257, 257, generator=draw) < 0.8
    safe[256] = safe[:, 256] = True
    return Vocabulary(first, safe, offsets, members)

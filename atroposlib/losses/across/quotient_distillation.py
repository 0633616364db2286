"""KL over common outcomes at safe cuts, refined by the paths of safe chunks: the default across tokenizers.

At a cut both models are conditioned on the next byte being one that makes the cut safe (the class): then
what they say of the next bytes does not depend on their tokenizers. Their common outcomes are the components
of the quotient (:mod:`atroposlib.projection.quotient`), the cells of this KL; whatever the teacher did not
name is one tail. With ``path`` the cell of the token that stands in the text is split in two, the whole chunk
up to the next safe cut and the rest, so that what happens inside of a cell is learned too. Equal
distributions over texts give 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.across.all_rows import read_all_rows, share
from atroposlib.losses.across.cells import Cells, Chunk, cells_of, split_by_path, without_sampled
from atroposlib.losses.across.paths import student_paths, surprisal_divergence
from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.losses.across.water_filling import water_filled
from atroposlib.losses.divergences import Divergence, divergence_of
from atroposlib.losses.groups import ALONE, Groups
from atroposlib.losses.groups import share as groups_share
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics


def quotient_distillation(
    hidden: Tensor,
    head: Head,
    targets: ChunkTargets,
    *,
    path: bool = True,
    residual_weight: float = 0.0,
    divergence: Divergence = "forward",
    beta: float = 0.5,
    global_count: int,
    groups: Groups = ALONE,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Metrics]:
    """The quotient KL of one micro-batch.

    Args:
        hidden: [N, H] at ``targets.positions``; with context parallelism, of the rows ``targets.own``.
        head: The student's output layer.
        targets: N rows of one teacher.
        path: Split the observed cell by the path of the safe chunk.
        residual_weight: Weight of the other way to learn from the path: a log(a / s) - a + s of what the
            chunk adds to its cell in surprisal. It leaves the cells to the teacher's top-k alone, and does
            not go with ``path``.
        divergence: Of teacher and student over the cells; ``forward``, ``reverse`` or ``jsd``.
        beta: Skew of the JSD.
        global_count: Cuts (``ChunkArrays.cuts``) in the whole optimizer step.
        groups: Ranks that share the head's rows, and ranks that share the N rows.
        chunk_rows: Rows of logits that exist at once.

    Returns:
        The loss (scalar, nats a cut: sum over cuts / ``global_count``), and sums over cuts: ``loss``,
        ``residual`` (that part of it, before its weight), ``cuts``, ``paths`` (cuts whose path is used),
        ``captured_mass`` (teacher probability named), ``student_tail_mass`` beside ``teacher_tail_mass``
        (outside of the cells).

    Raises:
        ConfigError: Settings that do not fit together (``config.invalid``).
        LossError: Rows of ``hidden`` and targets that do not fit.
    """
    _check(path, residual_weight, divergence)
    figures = read_all_rows(hidden, head, targets, groups=groups, chunk_rows=chunk_rows)
    log_token, log_cells, log_tail, log_class = figures
    rows = targets.cut.nonzero().squeeze(-1)
    cells = cells_of(log_cells, log_tail, log_class, targets, rows)
    chunk = Chunk(
        log_q=targets.path[rows] - targets.boundary[rows],
        log_p=(student_paths(log_token, log_class, targets) - log_class)[rows],
        compared=(targets.chunk_end[rows] >= 0) & targets.same_cell[rows],
    )
    if residual_weight:
        cells = without_sampled(cells, targets.sampled_cell[rows])
    events = split_by_path(cells, chunk) if path else cells
    complete = water_filled(events.mass, events.is_open, events.student())
    loss = divergence_of(events.against(complete), divergence, mixed_weight=0.5, beta=beta)
    residual = _residual(cells, chunk, complete) if residual_weight else torch.zeros_like(loss)
    mine = targets.mine[rows]
    total = share(loss + residual_weight * residual, mine)
    sums = _figures_of_cuts(cells, chunk) | {"residual": residual.detach()}
    metrics = {"loss": total.detach()} | {name: values[mine].sum() for name, values in sums.items()}
    return groups_share(total, global_count).to(torch.promote_types(hidden.dtype, torch.float32)), metrics


def _figures_of_cuts(cells: Cells, chunk: Chunk) -> dict[str, Tensor]:
    """[Q] each: what the metrics are sums of."""
    return {
        "cuts": torch.ones_like(cells.observed),
        "paths": chunk.compared.long(),
        "captured_mass": cells.mass.sum(-1),
        "teacher_tail_mass": 1.0 - cells.mass[:, :-1].sum(-1),
        "student_tail_mass": cells.log_p[:, -1].detach().exp(),
    }


def _residual(cells: Cells, chunk: Chunk, teacher: Tensor) -> Tensor:
    """[Q] nats: the divergence of surprisals within the observed cell; 0 where no path is known.

    Of a component with unnamed tokens the teacher's mass is known within bounds alone: within them there is
    nothing to learn. The tail has what the completed distribution leaves to it.

    Args:
        cells: With the tail as the last event.
        chunk: The chunks.
        teacher: [Q, E] completed.
    """
    known, completed = cells.of_observed(cells.mass), cells.of_observed(teacher)
    left = (1.0 - cells.mass.sum(-1)).clamp_min(0.0)
    of_tail = cells.observed == cells.mass.shape[-1] - 1
    most = known + torch.where(cells.of_observed(cells.is_open), left, 0.0)
    student = torch.where(chunk.compared, cells.of_observed(cells.log_p) - chunk.log_p, 0.0)
    bounds = [
        torch.where(chunk.compared, torch.where(of_tail, completed, bound), 1.0).log()
        - torch.where(chunk.compared, chunk.log_q, 0.0)
        for bound in (known, most)
    ]
    return surprisal_divergence(student.detach().clamp(*bounds), student)


def _check(path: bool, residual_weight: float, divergence: Divergence) -> None:
    if path and residual_weight:
        raise ConfigError(
            "the path would be learned twice",
            code="config.invalid",
            where="quotient_distillation.residual_weight",
            got=residual_weight,
            expected="0 with path, or path: false",
            fix="set path: false",
        )
    if divergence not in ("forward", "reverse", "jsd"):
        raise ConfigError(
            "no such divergence",
            code="config.invalid",
            where="quotient_distillation.divergence",
            got=divergence,
            expected="forward, reverse or jsd",
        )

"""A teacher's logits as the losses read them: all of them, or the few columns that a server ships.

An absent column (not shipped, or of probability 0) is -inf wherever columns stand in a dense tensor, and
leaves by a mask before any arithmetic: it is never read as a small probability. What the columns that were
not shipped hold together is known, and is one more event: "any other token". B rows, u positions, K shipped
columns, V ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atroposlib.losses.compatible.full_logits_ipc import rebuild_full_logits
from atroposlib.losses.compatible.interfaces import Data
from atroposlib.losses.compatible.localized import next_of
from atroposlib.losses.compatible.masked import absent
from atroposlib.losses.compatible.sharded import positions_of, wide
from atroposlib.losses.groups import Groups, largest


@dataclass(frozen=True, slots=True)
class SparseColumns:
    """Log probabilities over the whole vocabulary, at a few ids a position.

    Attributes:
        ids: int64 [B, u, K]; negative where absent. Each once in a row.
        logprobs: [B, u, K] in nats, at temperature 1; -inf where absent.
    """

    ids: Tensor
    logprobs: Tensor


Teacher = Tensor | SparseColumns
"""Full logits [B, u, V], or shipped columns; row p speaks of token p + 1."""


def teacher_of(data: Data, i: int, student_at: Tensor, groups: Groups) -> tuple[Teacher, Tensor]:
    """Teacher ``i`` on this rank's positions, and which those are.

    With another tokenizer a context-parallel rank reads an equal run of the teacher's positions; with the
    student's, the student's own positions.

    Args:
        data: ``teacher_{i}_topk_ids`` and ``_topk_logprobs`` [B, U, K] as a server ships them, row p of token
            p, or ``teacher_{i}_full_logits_ipc``: logits [B, U, V], row p of token p + 1, or handles of them.
        i: The teacher's number.
        student_at: int64 [t].
        groups: The student's.
    """
    same = f"alignment_{i}_student_chunk_id" not in data
    length = data["input_ids" if same else f"teacher_{i}_input_ids"].shape[1]
    at = student_at if same else positions_of(length, groups.context, student_at.device)
    if f"teacher_{i}_topk_ids" in data:
        ids = next_of(data[f"teacher_{i}_topk_ids"], -1).index_select(1, at)
        logprobs = next_of(data[f"teacher_{i}_topk_logprobs"], -torch.inf).index_select(1, at)
        gone = (ids < 0) | absent(logprobs)
        return SparseColumns(torch.where(gone, -1, ids), wide(logprobs).masked_fill(gone, -torch.inf)), at
    given = data[f"teacher_{i}_full_logits_ipc"]
    if isinstance(given, Tensor):
        return given[:, :length].index_select(1, at), at
    # The handles give a rank its consecutive run, which zigzag positions of a shared tokenizer are not.
    whole = Groups() if same else groups
    rebuilt = rebuild_full_logits(given, groups=whole, length=length)
    return (rebuilt.index_select(1, at) if same else rebuilt), at


def width_of(teacher: Teacher, vocabulary: int) -> int:
    """How many ids a teacher's columns go over: those of its tensor, at most its ``vocabulary``."""
    return min(teacher.shape[-1], vocabulary) if isinstance(teacher, Tensor) else vocabulary


def dense(teacher: Teacher, width: int, columns: Tensor | None = None) -> Tensor:
    """Logits [B, u, k] of ``columns`` int64 [k], or of all ids below ``width``; -inf where absent."""
    if isinstance(teacher, Tensor):
        cut = wide(teacher.detach()[..., :width])
        return cut if columns is None else cut.index_select(-1, columns)
    if columns is None:
        columns = torch.arange(width, device=teacher.ids.device)
    # One place more, for what lies in none of the columns.
    place = torch.full((width + 1,), len(columns), device=teacher.ids.device)
    place[columns] = torch.arange(len(columns), device=teacher.ids.device)
    at = place[torch.where(teacher.ids < 0, width, teacher.ids.clamp_max(width))]
    room = teacher.logprobs.new_full((*at.shape[:-1], len(columns) + 1), -torch.inf)
    return room.scatter(-1, at, teacher.logprobs)[..., : len(columns)]


def highest_columns(teacher: Teacher, width: int, k: int, groups: Groups) -> Tensor:
    """int64 [k]: the ids with the largest logit anywhere in the batch, ascending.

    Over all positions of all context ranks, padding and masked ones included, as NeMo RL chooses.
    """
    if isinstance(teacher, Tensor):
        peaks = wide(teacher.detach()[..., :width]).amax((0, 1))
    else:
        peaks = teacher.logprobs.new_full((width,), -torch.inf)
        known = (teacher.ids >= 0) & (teacher.ids < width)
        peaks = peaks.scatter_reduce(0, teacher.ids[known], teacher.logprobs[known], "amax")
    peaks = largest(peaks, groups.context)
    return peaks.topk(min(k, width)).indices.sort().values


def logprobs_at(teacher: Teacher, width: int, temperature: float, columns: Tensor | None = None) -> Tensor:
    """Log probabilities over all ids below ``width``, of ``columns`` or of all; -inf where absent.

    Shipped ones are over the server's whole vocabulary already.
    """
    found = dense(teacher, width, columns)
    if isinstance(teacher, SparseColumns):
        return found
    whole = found if columns is None else dense(teacher, width)
    return found / temperature - (whole / temperature).logsumexp(-1, keepdim=True)


def with_rest(logprobs: Tensor, shared: Tensor, width: int) -> Tensor:
    """[..., k + 1]: log probabilities of the columns in ``shared``, and of any other token; -inf where none.

    Args:
        logprobs: [..., k] over the whole vocabulary.
        shared: bool [..., k], each present in ``logprobs``.
        width: How many ids there are; a row that shares them all has no other token.
    """
    kept = torch.where(shared, logprobs, -torch.inf)
    # A small difference of numbers near 1: what float32 leaves of it is noise.
    others = (1.0 - kept.double().exp().sum(-1, keepdim=True)).clamp_min(0.0)
    others = torch.where(shared.sum(-1, keepdim=True) >= width, 0.0, others)
    return torch.cat([kept, others.log().to(kept.dtype)], -1)


def log_softmax_of(values: Tensor, present: Tensor) -> Tensor:
    """log softmax over the present ones of [..., k]; -inf at the others, also where none is there."""
    some = present.any(-1, keepdim=True)
    filled = torch.where(present, values, torch.where(some, -torch.inf, 0.0))
    return torch.where(present, torch.log_softmax(filled, -1), -torch.inf)

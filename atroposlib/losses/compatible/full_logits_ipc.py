"""Hands full teacher logits from process to process on one machine, as handles of CUDA memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, cast

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible.full_logits_shards import Shard, Window, assembled
from atroposlib.losses.groups import ALONE, Groups, rank_in, size_of

DEVICE = 6
"""Where ``torch.multiprocessing.reductions.rebuild_cuda_tensor`` takes the device's number."""


class SampleHandles(TypedDict):
    """One sample's logits: the shards of all tensor and context ranks of the teacher."""

    teacher_shards: list[Shard]


def rebuild_full_logits(
    handles: Sequence[SampleHandles | Shard],
    *,
    groups: Groups = ALONE,
    length: int | None = None,
    open: Callable[[Any], Tensor] | None = None,
) -> Tensor:
    """Teacher logits of this rank's positions, over the whole vocabulary.

    The teacher may be cut otherwise than the student: each shard says where it lies.

    Args:
        handles: ``teacher_{i}_full_logits_ipc``, one a sample. A bare shard is a sample in one piece.
        groups: The student's. A context rank gets its run of T / context ranks positions, in rank order;
            every tensor rank gets all V columns.
        length: T, where the teacher padded its rows behind it; None for all of its positions.
        open: The memory behind a ``payload_ipc``; None for :func:`open_cuda`. Called once a payload.

    Returns:
        [B, T / context ranks, V], of the memory's dtype; a copy, so the producer may write again once the
        copy is done on the device.

    Raises:
        LossError: No sample, shapes that differ between samples, positions that the context ranks cannot
            share equally, or shards with gaps or overlaps.
    """
    samples = [_shards_of(handle, number) for number, handle in enumerate(handles)]
    window = _own_window(samples, groups, length)
    opened: dict[Any, Tensor] = {}

    def source(shard: Shard) -> Tensor:
        payload = shard["payload_ipc"]
        if payload not in opened:
            opened[payload] = (open or open_cuda)(payload)
        return opened[payload]

    return assembled(samples, window, source)


def export_full_logits(
    memory: Tensor, samples: int, *, groups: Groups = ALONE, payload: Callable[[Tensor], Any] | None = None
) -> list[Shard]:
    """This rank's shards of a batch, for :func:`gathered_shards` and then :func:`rebuild_full_logits`.

    Keep ``memory`` alive until every consumer has read it, and synchronise the device before the handles
    leave: a consumer does not wait for the producer's stream.

    Args:
        memory: [M, B, T_local, V_local]: M micro-batches of B samples, written by this rank. Every rank has
            equal T_local and V_local.
        samples: How many samples it holds, at most M * B; the last micro-batch may be short.
        groups: The teacher's.
        payload: What names the memory; None for :func:`cuda_payload`.
    """
    tensor_rank, tensor_size = rank_in(groups.tensor), size_of(groups.tensor)
    context_rank, context_size = rank_in(groups.context), size_of(groups.context)
    _, per_batch, positions, columns = memory.shape
    name = (payload or cuda_payload)(memory)
    return [
        Shard(
            payload_ipc=name,
            buf_idx=sample // per_batch,
            sample_index_in_buf=sample % per_batch,
            actual_shape=(positions, columns),
            global_seq_start=context_rank * positions,
            vocab_start_index=tensor_rank * columns,
            vocab_end_index=(tensor_rank + 1) * columns,
            full_seq_len=positions * context_size,
            full_vocab_size=columns * tensor_size,
            tp_rank=tensor_rank,
            tp_size=tensor_size,
            cp_rank=context_rank,
            cp_size=context_size,
        )
        for sample in range(samples)
    ]


def gathered_shards(by_rank: Sequence[Sequence[Shard]]) -> list[SampleHandles]:
    """What the tensor and context ranks of one teacher replica exported, by sample."""
    return [SampleHandles(teacher_shards=list(shards)) for shards in zip(*by_rank, strict=True)]


def cuda_payload(memory: Tensor) -> tuple[tuple[Any, ...]]:
    """What another process on this machine needs to open the CUDA memory of a tensor."""
    # Imported here: it starts the machinery of shared memory, which most processes never need.
    from torch.multiprocessing.reductions import reduce_tensor

    _, arguments = reduce_tensor(memory.detach())  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return (tuple(arguments),)


def open_cuda(payload: tuple[tuple[Any, ...]]) -> Tensor:
    """The tensor behind :func:`cuda_payload`, read through this process's current device."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    arguments = list(payload[0])
    # The producer's number of the device means nothing where CUDA_VISIBLE_DEVICES differs.
    arguments[DEVICE] = torch.cuda.current_device()
    memory: Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    return memory


def _shards_of(handle: SampleHandles | Shard, number: int) -> list[Shard]:
    shards = cast("list[Shard]", handle.get("teacher_shards", [handle]))
    if not shards:
        raise LossError(
            "a sample without teacher logits", where=f"sample {number}", expected="a shard or more"
        )
    return shards


def _own_window(samples: Sequence[Sequence[Shard]], groups: Groups, length: int | None) -> Window:
    """The positions of this context rank, which must be as many for all samples and on all ranks."""
    shapes = {(shard["full_seq_len"], shard["full_vocab_size"]) for shards in samples for shard in shards}
    if len(shapes) != 1:
        raise LossError(
            "handles of one batch of teacher logits must agree on positions and vocabulary",
            got=sorted(shapes),
            expected="one (positions, tokens)",
        )
    ((there, _),) = shapes
    positions = there if length is None else length
    if positions > there:
        raise LossError(
            "teacher logits are shorter than its rows", got=there, expected=f"{positions} or more"
        )
    ranks = size_of(groups.context)
    if positions % ranks:
        raise LossError(
            "the student's context ranks cannot share the teacher's positions equally",
            got=positions,
            expected=f"a multiple of {ranks}",
            fix="pad the teacher's sequences before its forward pass",
        )
    each = positions // ranks
    return Window(rank_in(groups.context) * each, (rank_in(groups.context) + 1) * each)

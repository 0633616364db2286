"""Full teacher logits from shards: any cut of the teacher to any cut of the student."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible import full_logits_ipc
from atroposlib.losses.compatible.full_logits_ipc import (
    SampleHandles,
    export_full_logits,
    gathered_shards,
    rebuild_full_logits,
)
from atroposlib.losses.groups import Groups
from tests.support.ranks import run_on_ranks


class Place:
    """Stands for a process group: this rank's number, and how many there are."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_logits_ipc, "rank_in", lambda group: group.rank if group else 0)
    monkeypatch.setattr(full_logits_ipc, "size_of", lambda group: group.size if group else 1)


def places(tensor: int, context: int) -> Iterator[Groups]:
    """The groups that each rank of such a mesh sees."""
    for context_rank, tensor_rank in product(range(context), range(tensor)):
        yield Groups(Place(tensor_rank, tensor), Place(context_rank, context))  # stand-ins


def handed_over(logits: Tensor, tensor: int, context: int, per_batch: int) -> tuple[Any, dict[str, Tensor]]:
    """Handles of logits [B, T, V] as a teacher cut so would export them, and the memory they name."""
    samples = logits.shape[0]
    batches = -(-samples // per_batch)
    memories: dict[str, Tensor] = {}
    by_rank = []
    for rank, groups in enumerate(places(tensor, context)):
        part = logits.chunk(context, 1)[rank // tensor].chunk(tensor, 2)[rank % tensor]
        # NaN where no sample lies: whatever is read there would show.
        memory = torch.full((batches * per_batch, *part.shape[1:]), torch.nan)
        memory[:samples] = part
        memories[f"rank {rank}"] = memory.reshape(batches, per_batch, *part.shape[1:])
        name = f"rank {rank}"
        by_rank.append(
            export_full_logits(memories[name], samples, groups=groups, payload=lambda _, name=name: name)
        )
    return gathered_shards(by_rank), memories


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    teacher=st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4])),
    student=st.sampled_from([1, 2, 3, 4]),
    samples=st.integers(1, 4),
    per_batch=st.integers(1, 3),
)
def test_every_student_rank_gets_its_positions_of_every_column(
    teacher: tuple[int, int], student: int, samples: int, per_batch: int
) -> None:
    logits = torch.randn(samples, 12, 6, generator=torch.Generator().manual_seed(3))
    handles, memories = handed_over(logits, *teacher, per_batch)
    for rank, groups in enumerate(places(1, student)):
        each = 12 // student
        rebuilt = rebuild_full_logits(handles, groups=groups, open=memories.__getitem__)
        torch.testing.assert_close(rebuilt, logits[:, rank * each : (rank + 1) * each], rtol=0, atol=0)


def test_the_students_tensor_ranks_all_get_every_column() -> None:
    logits = torch.randn(2, 4, 6)
    handles, memories = handed_over(logits, 2, 1, 2)
    for groups in places(3, 1):
        assert torch.equal(rebuild_full_logits(handles, groups=groups, open=memories.__getitem__), logits)


def test_a_payload_is_opened_once_and_its_dtype_kept() -> None:
    memory = torch.randn(1, 3, 4, 5).to(torch.bfloat16)
    opened = []

    def opens(payload: str) -> Tensor:
        opened.append(payload)
        return memory

    handles = export_full_logits(memory, 3, payload=lambda _: "memory")
    rebuilt = rebuild_full_logits(handles, open=opens)
    assert opened == ["memory"]
    assert torch.equal(rebuilt, memory[0])


def test_what_is_handed_over_is_a_copy() -> None:
    memory = torch.ones(1, 1, 2, 3)
    rebuilt = rebuild_full_logits(export_full_logits(memory, 1, payload=lambda _: 0), open=lambda _: memory)
    memory.zero_()
    assert bool((rebuilt == 1).all())


def _without_a_rank(handles: list[SampleHandles]) -> None:
    handles[1]["teacher_shards"].pop()


def _twice(handles: list[SampleHandles]) -> None:
    handles[1]["teacher_shards"].append(handles[1]["teacher_shards"][0])


def _no_shard(handles: list[SampleHandles]) -> None:
    handles[1]["teacher_shards"].clear()


def _other_length(handles: list[SampleHandles]) -> None:
    handles[1]["teacher_shards"][0]["full_seq_len"] = 16


def _too_large(handles: list[SampleHandles]) -> None:
    handles[1]["teacher_shards"][0]["buf_idx"] = 7


def _other_width(handles: list[SampleHandles]) -> None:
    for shard in handles[1]["teacher_shards"]:
        shard["actual_shape"] = (shard["actual_shape"][0], 2)


@pytest.mark.parametrize(
    ("spoil", "tells"),
    [
        (_without_a_rank, "sample 1: shards of teacher logits do not cover"),
        (_twice, "sample 1: two shards of teacher logits hold the same"),
        (_no_shard, "sample 1: a sample without teacher logits"),
        (_other_length, "must agree on positions and vocabulary"),
        (_too_large, "sample 1: the memory of a shard of teacher logits is smaller"),
        (_other_width, "sample 1: a shard of teacher logits has another number of columns"),
    ],
)
def test_handles_that_do_not_add_up_are_refused(spoil: Any, tells: str) -> None:
    handles, memories = handed_over(torch.randn(2, 4, 6), 2, 2, 1)
    spoil(handles)
    with pytest.raises(LossError, match=tells):
        rebuild_full_logits(handles, open=memories.__getitem__)


def test_positions_that_context_ranks_cannot_share_are_refused() -> None:
    handles, memories = handed_over(torch.randn(1, 4, 6), 1, 1, 1)
    with pytest.raises(LossError, match="cannot share the teacher's positions equally"):
        rebuild_full_logits(handles, groups=next(places(1, 3)), open=memories.__getitem__)


def test_an_empty_list_of_handles_is_refused() -> None:
    with pytest.raises(LossError, match="must agree on positions"):
        rebuild_full_logits([])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_another_process_reads_the_memory_on_cuda() -> None:
    exported, rebuilt = run_on_ranks(_exports_or_reads, 2)
    assert torch.equal(exported, rebuilt)


def _exports_or_reads() -> Tensor:
    """Rank 0 exports logits of its device and waits; rank 1 reads them."""
    memory = torch.randn(1, 2, 3, 5, device="cuda")
    torch.cuda.synchronize()
    handles = export_full_logits(memory, 2) if dist.get_rank() == 0 else None
    sent = [handles]
    dist.broadcast_object_list(sent, src=0)
    logits = rebuild_full_logits(sent[0] or []).cpu() if dist.get_rank() == 1 else memory[0].cpu()
    dist.barrier()
    return logits

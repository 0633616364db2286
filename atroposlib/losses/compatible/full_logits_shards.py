"""Full teacher logits that lie cut over ranks: what a shard says of itself, and how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NotRequired, TypedDict

from torch import Tensor

from atroposlib.errors import LossError

Source = Callable[["Shard"], Tensor]
"""The memory that a shard lies in: [M, B, T_local, V_local], M micro-batches of B samples."""


class Shard(TypedDict):
    """One teacher rank's part of one sample's logits. Keys are NeMo RL's, whose producers make them too.

    Attributes:
        payload_ipc: Names the memory [M, B, T_local, V_local] for whoever opens it; hashable.
        buf_idx: Micro-batch in that memory.
        sample_index_in_buf: Sample in that micro-batch.
        actual_shape: (positions, columns) of it that hold logits.
        global_seq_start: First position.
        vocab_start_index: First token id.
        vocab_end_index: Behind the last one.
        full_seq_len: T, over all context ranks of the teacher.
        full_vocab_size: V, over all its tensor ranks.
        tp_rank, tp_size, cp_rank, cp_size: The teacher rank's place, for whoever reads a message.
    """

    payload_ipc: Any
    buf_idx: int
    sample_index_in_buf: int
    actual_shape: tuple[int, int]
    global_seq_start: int
    vocab_start_index: int
    vocab_end_index: int
    full_seq_len: int
    full_vocab_size: int
    tp_rank: NotRequired[int]
    tp_size: NotRequired[int]
    cp_rank: NotRequired[int]
    cp_size: NotRequired[int]


@dataclass(frozen=True, slots=True)
class Window:
    """Positions [first, last) of a sample: what one context rank of the student holds."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a shard that lies in a window, in positions and token ids of the whole sample."""

    shard: Shard
    first: int
    last: int
    start: int
    end: int

    @property
    def area(self) -> int:
        return (self.last - self.first) * (self.end - self.start)

    def meets(self, other: _Piece) -> bool:
        """Whether both hold the logit of one position and token."""
        apart = self.last <= other.first or other.last <= self.first
        return not (apart or self.end <= other.start or other.end <= self.start)


def assembled(samples: Sequence[Sequence[Shard]], window: Window, source: Source) -> Tensor:
    """The logits [B, window, V] of all samples.

    Args:
        samples: All parts of each sample, however the teacher cut it.
        window: The positions wanted.
        source: Opens a shard's memory.

    Raises:
        LossError: The parts leave a gap, overlap, or do not have the shape that they tell of.
    """
    vocabulary = samples[0][0]["full_vocab_size"]
    pieces = [list(_pieces(shards, window)) for shards in samples]
    for number, of_sample in enumerate(pieces):
        _check_cover(of_sample, window, vocabulary, f"sample {number}")
    size = len(samples), window.last - window.first, vocabulary
    whole = source(pieces[0][0].shard).new_empty(size)
    for number, of_sample in enumerate(pieces):
        for piece in of_sample:
            own = _own_logits(piece.shard, source(piece.shard), f"sample {number}")
            first, start = piece.shard["global_seq_start"], piece.shard["vocab_start_index"]
            rows = slice(piece.first - window.first, piece.last - window.first)
            whole[number, rows, piece.start : piece.end] = own[
                piece.first - first : piece.last - first, piece.start - start : piece.end - start
            ]
    return whole


def _pieces(shards: Sequence[Shard], window: Window) -> Iterator[_Piece]:
    for shard in shards:
        start = shard["global_seq_start"]
        first = max(window.first, start)
        last = min(window.last, start + shard["actual_shape"][0])
        if first < last:
            yield _Piece(shard, first, last, shard["vocab_start_index"], shard["vocab_end_index"])


def _check_cover(pieces: Sequence[_Piece], window: Window, vocabulary: int, where: str) -> None:
    """Refuse a logit that is in no piece or in two: it would be whatever the memory held before."""
    for one, other in combinations(pieces, 2):
        if one.meets(other):
            raise LossError(
                "two shards of teacher logits hold the same positions and tokens",
                where=where,
                got=[_place(one.shard), _place(other.shard)],
                fix="gather each rank's handles once, and only from ranks of one data-parallel replica",
            )
    covered = sum(piece.area for piece in pieces)
    wanted = (window.last - window.first) * vocabulary
    if not pieces or covered != wanted:
        raise LossError(
            "shards of teacher logits do not cover what this rank needs",
            where=where,
            got=f"{covered} logits in {[_place(piece.shard) for piece in pieces]}",
            expected=f"{wanted} logits: positions {window.first} to {window.last}, {vocabulary} tokens",
            fix="gather the handles of every tensor and context rank of the teacher",
        )


def _own_logits(shard: Shard, memory: Tensor, where: str) -> Tensor:
    """[T_local, V_local] of one sample in the memory it shares with others."""
    positions, columns = shard["actual_shape"]
    slot = shard["buf_idx"], shard["sample_index_in_buf"]
    room = (slot[0] + 1, slot[1] + 1, positions, columns)
    width = shard["vocab_end_index"] - shard["vocab_start_index"]
    if memory.dim() != 4 or any(have < need for have, need in zip(memory.shape, room, strict=True)):
        raise LossError(
            "the memory of a shard of teacher logits is smaller than its handle says",
            where=where,
            got=tuple(memory.shape),
            expected=f"at least {room}",
        )
    if columns != width:
        raise LossError(
            "a shard of teacher logits has another number of columns than of token ids",
            where=where,
            got=columns,
            expected=width,
        )
    return memory[slot[0], slot[1], :positions, :columns]


def _place(shard: Shard) -> str:
    last = shard["global_seq_start"] + shard["actual_shape"][0]
    return (
        f"positions {shard['global_seq_start']} to {last}, "
        f"tokens {shard['vocab_start_index']} to {shard['vocab_end_index']}"
    )

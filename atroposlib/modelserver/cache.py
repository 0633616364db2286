"""The key-value cache of a running batch: rows come and go, each aligned to the right.

Keys carry their positions (the model rotates them before they are cached), so a row may be moved along the
cache as long as the attention mask moves with it.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 64
"""Positions that are allocated ahead, so that a decode step copies one position and not the whole cache."""


class RoomyLayer(DynamicLayer):  # type: ignore[no-untyped-call]  # transformers' __init_subclass__
    """One layer's keys and values [B, heads, L, width], as views of tensors with room for more positions."""

    _room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append [B, heads, T, width] of new positions and return all keys and values."""
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
            self.is_initialized = True
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < stop:
            self._room = (
                _with_room(self.keys, key_states, stop),
                _with_room(self.values, value_states, stop),
            )
        keys, values = self._room
        keys[:, :, start:stop] = key_states
        values[:, :, start:stop] = value_states
        self.keys, self.values = keys[:, :, :stop], values[:, :, :stop]
        return self.keys, self.values


def _with_room(old: torch.Tensor | None, new: torch.Tensor, length: int) -> torch.Tensor:
    batch, heads, _, width = new.shape
    room = new.new_empty(batch, heads, length + ROOM, width)
    if old is not None:
        room[:, :, : old.shape[-2]] = old
    return room


@dataclass(frozen=True, slots=True)
class Row:
    """Positions ``start`` to ``stop`` of one row of a cache."""

    cache: Cache
    row: int
    start: int
    stop: int


def stack_rows(rows: Many[Row]) -> Cache:
    """A cache of these rows, the shorter ones padded with zeros on the left.

    One function for joining batches, dropping finished rows and repeating a prompt for several sequences.
    """
    length = max(row.stop - row.start for row in rows)
    stacked = new_cache()
    for index in range(len(rows[0].cache.layers)):
        keys = _stack([_slice(row, index)[0] for row in rows], length)
        values = _stack([_slice(row, index)[1] for row in rows], length)
        stacked.update(keys, values, index)
    return stacked


def _slice(row: Row, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = row.cache.layers[layer]
    if not isinstance(source, DynamicLayer) or source.keys is None or source.values is None:
        raise RuntimeError(f"layer {layer} of the cache holds no keys and values")
    return source.keys[row.row, :, row.start : row.stop], source.values[row.row, :, row.start : row.stop]


def _stack(parts: Many[torch.Tensor], length: int) -> torch.Tensor:
    heads, _, width = parts[0].shape
    stacked = parts[0].new_zeros(len(parts), heads, length, width)
    for index, part in enumerate(parts):
        stacked[index, :, length - part.shape[1] :] = part
    return stacked


def new_cache() -> Cache:
    """An empty cache that keeps every position of every layer, sliding windows included."""
    return Cache(layer_class_to_replicate=RoomyLayer)

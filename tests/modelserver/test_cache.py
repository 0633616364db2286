"""The cache's rows and the grouped attention equal their plain counterparts."""

from __future__ import annotations

import pytest
import torch

from atroposlib.modelserver.attention import grouped_sdpa
from atroposlib.modelserver.cache import ROOM, Row, new_cache, stack_rows


def random_tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_appended_positions_are_those_of_a_concatenation() -> None:
    parts = [random_tensor(2, 3, length, 4, seed=length) for length in (5, 1, 1, ROOM, 2)]
    cache = new_cache()
    for part in parts:
        keys, values = cache.update(part, -part, 0)
    assert torch.equal(keys, torch.cat(parts, dim=2))
    assert torch.equal(values, -torch.cat(parts, dim=2))
    assert cache.get_seq_length() == keys.shape[2]


def test_stacked_rows_are_cut_moved_to_the_right_and_repeated() -> None:
    first, second = new_cache(), new_cache()
    for layer in range(2):
        first.update(random_tensor(2, 1, 6, 3, seed=layer), random_tensor(2, 1, 6, 3, seed=10 + layer), layer)
        second.update(random_tensor(1, 1, 4, 3, seed=20 + layer), random_tensor(1, 1, 4, 3), layer)
    stacked = stack_rows([Row(first, 1, 2, 5), Row(second, 0, 0, 4), Row(second, 0, 0, 4)])
    for layer in range(2):
        keys, values = stacked.layers[layer].keys, stacked.layers[layer].values
        assert keys is not None
        assert values is not None
        assert keys.shape == (3, 1, 4, 3)
        assert torch.equal(keys[0, :, 1:], first.layers[layer].keys[1, :, 2:5])  # type: ignore[index]
        assert torch.equal(values[0, :, 1:], first.layers[layer].values[1, :, 2:5])  # type: ignore[index]
        assert not keys[0, :, 0].any()
        assert torch.equal(keys[1], keys[2])
        assert torch.equal(keys[1], second.layers[layer].keys[0])  # type: ignore[index]


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("positions", [1, 3])
def test_grouped_attention_equals_a_softmax_over_repeated_keys(heads: int, positions: int) -> None:
    batch, groups, length, width = 3, 2, 7, 4
    query = random_tensor(batch, heads, positions, width, seed=1)
    key, value = (
        random_tensor(batch, groups, length, width, seed=2),
        random_tensor(batch, groups, length, width, seed=3),
    )
    mask = random_tensor(batch, 1, positions, length, seed=4) > -0.7
    module = torch.nn.Module()
    module.num_key_value_groups = heads // groups  # type: ignore[assignment]  # what transformers reads
    attended, _ = grouped_sdpa(module, query, key, value, mask, scaling=0.3)
    keys, values = (tensor.repeat_interleave(heads // groups, dim=1) for tensor in (key, value))
    scores = (query @ keys.transpose(-1, -2) * 0.3).masked_fill(~mask, -torch.inf)
    assert torch.allclose(attended, (scores.softmax(-1) @ values).transpose(1, 2), atol=1e-6)

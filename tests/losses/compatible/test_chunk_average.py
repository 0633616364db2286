"""Means over chunks where ids and pairs do not fit."""

from __future__ import annotations

import torch

from atroposlib.losses.compatible.chunk_average import chunk_means, chunk_sizes


def test_an_id_beyond_the_pairs_reaches_no_other_row_s_chunks() -> None:
    values = torch.tensor([[[1.0], [5.0], [9.0]], [[2.0], [4.0], [6.0]]])
    ids = torch.tensor([[0, 2, 3], [0, 0, 1]])
    assert chunk_sizes(ids, 2).tolist() == [[1, 0], [2, 1]]
    torch.testing.assert_close(
        chunk_means(values, ids, 2).squeeze(-1), torch.tensor([[1.0, 0.0], [3.0, 6.0]])
    )

"""Ranks that fail are told of by name, and none outlives its deadline."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from tests.support.ranks import RanksFailed, run_on_ranks


def test_the_rank_that_raised_is_told_with_its_traceback() -> None:
    with pytest.raises(RanksFailed) as failure:
        run_on_ranks(_second_raises, 2)
    assert "--- rank 1: Traceback" in str(failure.value)
    assert "ValueError: only here" in str(failure.value)


def test_a_rank_that_hangs_is_ended_at_the_deadline() -> None:
    with pytest.raises(RanksFailed, match="rank 0: no answer in time"):
        run_on_ranks(_hangs, 1, seconds=2.0)


def _second_raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("only here")
    dist.barrier()


def _hangs() -> None:
    time.sleep(600)

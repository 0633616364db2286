"""The cheap filters, each alone and in their order."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.envs.filters import drop_reason
from tests.envs.fakes import group_of


def reason(group: Any, **settings: Any) -> str | None:
    defaults = {"group_size": 2, "drop_equal_scores": True, "max_token_len": 10}
    return drop_reason(group, **{**defaults, **settings})


def test_good_group_is_kept() -> None:
    assert reason(group_of(0.0, 1.0)) is None


@pytest.mark.parametrize("missing", ["tokens", "masks", "scores"])
def test_missing_column_is_a_size_mismatch(missing: str) -> None:
    group = dict(group_of(0.0, 1.0))
    del group[missing]
    assert reason(group) == "size_mismatch"


def test_size_comes_before_scores_and_length() -> None:
    assert reason(group_of(1.0, length=50)) == "size_mismatch"


def test_scores_come_before_length() -> None:
    assert reason(group_of(1.0, 1.0, length=50)) == "equal_scores"


def test_sequence_of_the_limit_is_too_long_and_one_below_is_not() -> None:
    assert reason(group_of(0.0, 1.0, length=10)) == "too_long"
    assert reason(group_of(0.0, 1.0, length=9)) is None


def test_no_limit_without_a_positive_length() -> None:
    assert reason(group_of(0.0, 1.0, length=500), max_token_len=-1) is None


def test_equal_scores_pass_when_the_filter_is_off() -> None:
    assert reason(group_of(1.0, 1.0), drop_equal_scores=False) is None


def test_group_of_one_passes_when_the_filter_is_off() -> None:
    assert reason(group_of(1.0), group_size=1, drop_equal_scores=False) is None


def test_overrides_say_another_size() -> None:
    assert reason(group_of(0.0, 1.0, 2.0, group_overrides={"group_size": 3})) is None
    assert reason(group_of(0.0, 1.0, group_overrides={"group_size": 3})) == "size_mismatch"


def test_overrides_of_none_are_no_overrides() -> None:
    assert reason(group_of(0.0, 1.0, group_overrides=None)) is None


def test_empty_group_is_a_size_mismatch_whatever_the_size() -> None:
    assert reason({"tokens": [], "masks": [], "scores": []}, group_size=0) == "size_mismatch"

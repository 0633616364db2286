from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.config.suggest import did_you_mean, edit_distance, nearest

WORDS = st.text(alphabet="abc", max_size=6)


def _by_definition(left: str, right: str) -> int:
    """Optimal string alignment distance written as its recurrence."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        ways = [
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (left[i - 1] != right[j - 1]),
        ]
        if i > 1 and j > 1 and left[i - 1] == right[j - 2] and left[i - 2] == right[j - 1]:
            ways.append(distance(i - 2, j - 2) + 1)
        return min(ways)

    return distance(len(left), len(right))


@given(WORDS, WORDS)
def test_edit_distance_equals_its_recurrence(left: str, right: str) -> None:
    assert edit_distance(left, right) == _by_definition(left, right)


def test_every_name_one_edit_away_is_named() -> None:
    assert set(nearest("sead", ["seed", "send", "head", "leaf", "unrelated"])) == {"seed", "send", "head"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("env.group", "env.group_size"),
        ("group_size", "env.group_size"),
        ("Env.Group-Size", "env.group_size"),
        ("env.gruop_zise", "env.group_size"),
        ("server.base_url", "openai.base_url"),
    ],
)
def test_abbreviations_namespaces_and_two_edits_are_understood(typed: str, meant: str) -> None:
    assert meant in nearest(typed, ["env.group_size", "openai.base_url", "slurm"])


def test_nothing_near_gives_no_question() -> None:
    assert did_you_mean("zzzzzzzz", ["env.group_size", "slurm"]) is None


def test_the_question_writes_names_as_they_are_typed() -> None:
    assert did_you_mean("slrum", ["slurm"], mark="--") == "did you mean --slurm?"

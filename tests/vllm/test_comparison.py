"""The comparison of answers forgives rounding and ties, and nothing else. Needs no vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm.same_answer import differences, row_differences


def row(*members: tuple[int, float, int]) -> dict[str, dict[str, Any]]:
    """A row of prompt_logprobs from (id, logprob, rank)."""
    return {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": f"<{token}>"}
        for token, logprob, rank in members
    }


THEIRS = row((7, -9.0, 900), (1, -0.5, 1), (2, -1.5, 2), (3, -2.5, 3))


@pytest.mark.parametrize(
    "ours",
    [
        THEIRS,
        row((7, -9.0004, 905), (1, -0.5004, 1), (2, -1.5, 2), (3, -2.5, 3)),
        row((7, -9.0, 900), (1, -0.5, 1), (2, -1.5, 2), (4, -2.5003, 3)),
    ],
    ids=["same", "rounded", "tie at the end"],
)
def test_rounding_and_ties_are_no_difference(ours: dict[str, Any]) -> None:
    assert list(row_differences(ours, THEIRS)) == []


@pytest.mark.parametrize(
    "ours",
    [
        row((7, -9.0, 900), (1, -0.502, 1), (2, -1.5, 2), (3, -2.5, 3)),
        row((7, -9.0, 900), (1, -0.5, 2), (2, -1.5, 1), (3, -2.5, 3)),
        row((7, -9.0, 1900), (1, -0.5, 1), (2, -1.5, 2), (3, -2.5, 3)),
        row((7, -9.0, 900), (1, -0.5, 1), (4, -1.5, 2), (3, -2.5, 3)),
        row((1, -0.5, 1), (2, -1.5, 2), (3, -2.5, 3)),
    ],
    ids=["logprob", "order", "rank far down", "another token", "no token that stands there"],
)
def test_anything_else_is_a_difference(ours: dict[str, Any]) -> None:
    assert list(row_differences(ours, THEIRS)) != []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"text": "a"}, {"text": "b"}),
        ({"n": 1}, {"n": 1.0}),
        ({"n": None}, {"n": 0}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"choices": [1]}, {"choices": [1, 2]}),
        ({"logprob": -0.5}, {"logprob": -0.502}),
    ],
)
def test_values_types_keys_and_lengths_count(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert list(differences(theirs, theirs)) == []
    assert list(differences(ours, theirs)) != []

"""Advantages, logprobs of other policies and pairs are what a group says, absent where it says nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atroposlib.collate import Source, TrainSequence, Wanted, train_sequences
from atroposlib.collate.pairs import Place
from atroposlib.collate.signals import signals_of
from atroposlib.types import Group
from atroposlib.wire.arrays import to_arrays

TOKENS = [[5, 6, 7], [5, 6, 8], [5, 9, 4]]


def make_group(**changes: Any) -> Group:
    """Three sequences of three tokens, of which the last two are marked."""
    masks = [[-100, *tokens[1:]] for tokens in TOKENS]
    group: Any = {"tokens": TOKENS, "masks": masks, "scores": [1.0, 3.0, 2.0]} | changes
    return to_arrays(group, strict=True)


def read(group: Group, **wanted: Any) -> tuple[list[TrainSequence], Any]:
    return train_sequences([group], max_token_len=9, vocab_size=20, wanted=Wanted(**wanted))


def test_scores_are_centred_and_divided_by_their_deviation() -> None:
    found = [signals_of(make_group(), index).advantages for index in range(3)]
    expected = (np.array([1, 3, 2]) - 2) / np.sqrt(2 / 3)
    np.testing.assert_allclose(found, np.repeat(expected[:, None], 3, axis=1), rtol=1e-6)


def test_equal_scores_give_no_advantage_and_a_single_one_is_taken_as_it_is() -> None:
    assert not signals_of(make_group(scores=[2.0] * 3), 0).advantages.any()
    one = to_arrays({"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [0.5]}, strict=True)
    assert signals_of(one, 0).advantages.tolist() == [0.5, 0.5]


def test_advantages_of_the_group_are_taken_token_by_token() -> None:
    given = [[0.0, 0.25, -0.5]] * 3
    assert signals_of(make_group(advantages=given), 1).advantages.tolist() == given[1]


def test_an_override_makes_advantages_zero() -> None:
    group = make_group(overrides=[{}, {"set_advantage_to_zero": True}, {}])
    assert not signals_of(group, 1).advantages.any()
    assert signals_of(group, 0).advantages.all()


def test_tokens_that_nobody_sampled_have_no_generation_logprob() -> None:
    found = signals_of(make_group(inference_logprobs=[[1.0, -0.5, -9999.0]] * 3), 0).generation
    assert np.isnan(found).tolist() == [True, False, True]
    assert found[1] == np.float32(-0.5)
    assert np.isnan(signals_of(make_group(), 0).generation).all()


def reference_teacher(name: str = "reference") -> list[Any]:
    ids = [[[-1], *[[token] for token in tokens[1:]]] for tokens in TOKENS]
    logprobs = [[[-9999.0], [-0.5 - index], [-0.25]] for index in range(3)]
    return [{"name": name, "same_tokenizer": True, "token_ids": ids, "logprobs": logprobs}]


def test_reference_logprobs_are_the_group_s_or_those_of_the_teacher_named_reference() -> None:
    taught = signals_of(make_group(teachers=reference_teacher()), 1).reference
    assert np.isnan(taught[0])
    assert taught[1:].tolist() == [-1.5, -0.25]
    assert np.isnan(signals_of(make_group(teachers=reference_teacher("another")), 1).reference).all()
    own = make_group(teachers=reference_teacher(), ref_logprobs=[[-3.0] * 3] * 3)
    assert signals_of(own, 1).reference.tolist() == [-3.0] * 3


def test_the_reference_is_nobody_to_learn_from_unless_it_is_wanted() -> None:
    group = make_group(teachers=reference_teacher())
    assert read(group)[0] == []
    kept, _ = read(group, rows=lambda source: True)
    assert [list(one.rows) for one in kept] == [[Source("reference")]] * 3


def test_a_token_without_what_a_loss_needs_is_not_taught_and_counted() -> None:
    logprobs = [[1.0, -0.5, 1.0], [1.0, -0.5, -0.5], [1.0, 1.0, 1.0]]
    group = make_group(inference_logprobs=logprobs)
    kept, counts = read(group, signals=(("advantages", "generation"),))
    assert [one.positions(("generation",)).tolist() for one in kept] == [[0], [0, 1]]
    assert (counts.trained_tokens, counts.target_tokens) == (6, 3)
    assert +counts.untrained_rows == {"no_generation_logprob": 3}
    assert counts.dropped_sequences == {"no_target": 1}


def test_a_pair_is_the_best_against_the_worst() -> None:
    kept, counts = read(make_group(), pairs=True)
    assert [(one.token_ids.tolist(), one.place) for one in kept] == [
        (TOKENS[0], Place(0, chosen=False)),
        (TOKENS[1], Place(0, chosen=True)),
    ]
    assert +counts.untrained_rows == {"no_pair": 2}


def test_groups_of_equal_scores_make_no_pair_and_are_counted() -> None:
    kept, counts = read(make_group(scores=[1.0] * 3), pairs=True)
    assert kept == []
    assert counts.tied_groups == 1


@pytest.mark.parametrize("reference", [[[-1.0] * 3, [-1.0, -1.0, 1.0], [-1.0] * 3]])
def test_a_sequence_that_cannot_be_compared_whole_is_in_no_pair(reference: Any) -> None:
    kept, counts = read(make_group(ref_logprobs=reference), pairs=True, pair_signals=("reference",))
    assert [(one.token_ids.tolist(), one.place) for one in kept] == [
        (TOKENS[0], Place(0, chosen=False)),
        (TOKENS[2], Place(0, chosen=True)),
    ]
    assert +counts.untrained_rows == {"no_reference_logprob": 1, "no_pair": 1}


@pytest.mark.parametrize(("version", "age"), [(3, 4), (9, 0), (None, 0)])
def test_age_is_counted_in_the_student_s_steps(version: int | None, age: int) -> None:
    kept, _ = read(make_group(policy_version=version), signals=((),), newest=lambda: 7)
    assert {one.age for one in kept} == {age}

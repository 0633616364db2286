"""Scores that are of other ids, no probabilities, or another number every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atroposlib.doctor.answers import apart, check_answers
from atroposlib.doctor.check import Check
from atroposlib.doctor.logits import judge
from atroposlib.types import TeacherScores
from tests.doctor.subjects import MadeUpRoute, Shape, scoring

FIRST_IN_A_ROW = 3
AGAIN = 5


async def findings(shape: Shape, k: int = 4) -> dict[str, Check]:
    checks = await check_answers(scoring(MadeUpRoute(shape), k=k))
    return {check.name: check for check in checks}


def shifted_from(call: int, nats: float) -> Shape:
    """Answers as they are before a call, and every logprob lower by ``nats`` from it on."""
    return lambda logprobs, number: logprobs - np.float32(nats if number >= call else 0.0)


async def test_right_scores_pass_every_check() -> None:
    found = await findings(lambda logprobs, call: logprobs)
    assert {name: check.status for name, check in found.items()} == {
        "ids echoed": "ok",
        "normalised": "ok",
        "repeatable": "ok",
        "order": "ok",
    }
    assert found["repeatable"].facts == {"largest_difference_nats": 0.0}


async def test_mass_is_that_of_the_top_k_and_the_token_itself() -> None:
    shaped: list[NDArray[np.float32]] = []

    def keep(logprobs: NDArray[np.float32], call: int) -> NDArray[np.float32]:
        if call <= FIRST_IN_A_ROW:
            shaped.append(logprobs)
        return logprobs

    found = await findings(keep, k=12)
    expected = np.exp(np.concatenate(shaped).astype(np.float64)).sum(axis=1)
    assert found["normalised"].facts["mean_sum"] == pytest.approx(expected.mean(), abs=1e-6)
    assert "top 12" in found["normalised"].detail


async def test_the_standing_token_alone_is_not_enough_to_look_at() -> None:
    found = await findings(lambda logprobs, call: logprobs, k=0)
    assert found["normalised"].facts["top_k"] == 8


@pytest.mark.parametrize(
    "shape",
    [
        lambda logprobs, call: logprobs + np.float32(9.0),
        lambda logprobs, call: np.where(np.isneginf(logprobs), logprobs, np.float32(-0.1)),
        lambda logprobs, call: logprobs + np.float32(500.0),
        lambda logprobs, call: logprobs - np.float32(40.0),
    ],
)
async def test_logits_are_named(shape: Shape) -> None:
    check = (await findings(shape))["normalised"]
    assert check.status == "fail"
    assert "logits" in check.detail
    assert "--logprobs-mode" in (check.fix or "")


def test_a_standing_token_alone_may_be_as_unlikely_as_it_likes() -> None:
    assert judge("math", np.asarray([[-3.0], [-40.0]])) is None
    assert judge("math", np.asarray([[-3.0, -4.0], [-40.0, -41.0]])) is not None


@pytest.mark.parametrize(("nats", "status"), [(0.01, "ok"), (0.3, "warn"), (4.0, "fail")])
async def test_another_answer_to_the_same_sequence(nats: float, status: str) -> None:
    found = await findings(shifted_from(FIRST_IN_A_ROW + 1, nats))
    assert found["repeatable"].status == status
    assert found["repeatable"].facts["largest_difference_nats"] == pytest.approx(nats, abs=1e-5)


@pytest.mark.parametrize(("nats", "status"), [(0.01, "ok"), (0.3, "warn"), (4.0, "fail")])
async def test_another_answer_in_another_order(nats: float, status: str) -> None:
    found = await findings(shifted_from(AGAIN + 1, nats))
    assert found["repeatable"].status == "ok"
    assert found["order"].status == status
    assert ("prefix" in (found["order"].fix or "")) == (status == "fail")


async def test_one_wrong_row_of_one_sequence_is_seen() -> None:
    def one_row(logprobs: NDArray[np.float32], call: int) -> NDArray[np.float32]:
        if call == AGAIN + 2:
            logprobs[7, 0] -= 2.0
        return logprobs

    assert (await findings(one_row))["order"].status == "fail"


async def test_rows_of_other_ids_are_not_echoed() -> None:
    class OtherIds(MadeUpRoute):
        async def score(self, *args: Any) -> TeacherScores:
            scores = await super().score(*args)
            scores.ids[3, 0] = 299
            return scores

    found = {check.name: check.status for check in await check_answers(scoring(OtherIds()))}
    assert found == {"ids echoed": "fail", "normalised": "ok", "repeatable": "ok", "order": "ok"}


async def test_sequences_fit_into_a_small_server_and_share_their_beginning_alone() -> None:
    route = MadeUpRoute()
    await check_answers(scoring(route, max_model_len=21))
    first = [question.ids.tolist() for question in route.asked[:3]]
    assert {len(ids) for ids in first} == {20}
    assert len({tuple(ids[:10]) for ids in first}) == 1
    assert len({tuple(ids[10:]) for ids in first}) == 3


def answer(*rows: list[float]) -> TeacherScores:
    logprobs = np.asarray(rows, dtype=np.float32)
    return TeacherScores(np.zeros(logprobs.shape, dtype=np.int32), logprobs, 1, "fake")


def test_a_token_that_crosses_the_edge_of_the_top_k_is_no_difference() -> None:
    inside, outside = answer([-2.0, -1.0, -1.5, -np.inf]), answer([-2.0, -1.0, -1.5, -2.001])
    assert apart(inside, outside, k=3) == 0.0


def test_an_entry_that_only_one_answer_has_is_a_difference() -> None:
    assert apart(answer([-2.0, -1.0, -9.0]), answer([-2.0, -np.inf, -np.inf]), k=2) == np.inf
    assert apart(answer([-2.0]), answer([-2.5]), k=0) == 0.5

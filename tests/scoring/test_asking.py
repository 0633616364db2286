"""Teachers are asked about what is trained, routed as an environment routes them, and counted by reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from atroposlib.config.teacher import TeacherConfig
from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.scoring.asking import Panel
from atroposlib.scoring.chat import RowError
from atroposlib.scoring.counts import Counts
from atroposlib.scoring.rows import Row, read_row
from atroposlib.types import Group
from tests.scoring.support import TellingScorer, check_told, panel_of

GAPS = {"tokens": [1, 2, 3, 4, 5, 6, 7], "masks": [-100, -100, 3, -100, 5, 6, -100]}


def row_of(**members: Any) -> Row:
    return read_row(0, members, None)


async def build(panel: Panel, row: Row) -> tuple[Group | None, Counts]:
    counts = Counts()
    answers = await panel.ask(row, panel.errands(row))
    return panel.build(answers, counts), counts


async def test_only_what_is_trained_is_asked_and_kept() -> None:
    scorer = TellingScorer()
    group, counts = await build(panel_of({"teacher": scorer}), row_of(**GAPS))
    assert scorer.asked == [([1, 2, 3, 4, 5, 6], 2, 2)]
    assert group is not None
    check_told(group)
    assert counts.teachers["teacher"].positions == 3
    assert group.teachers == []


async def test_all_positions_are_kept_when_that_is_asked_for() -> None:
    scorer = TellingScorer()
    group, counts = await build(panel_of({"teacher": scorer}, positions="all"), row_of(**GAPS))
    assert scorer.asked == [([1, 2, 3, 4, 5, 6, 7], 2, 1)]
    assert group is not None
    assert group.targets is not None
    assert (group.targets.starts.tolist(), group.targets.counts.tolist()) == ([1], [6])
    assert counts.teachers["teacher"].positions == 6


async def test_named_teachers_have_entries_and_the_first_is_the_group_s_own() -> None:
    configs = {
        "a": TeacherConfig(weight=2.0, top_k=1),
        "b": TeacherConfig(),
        "off": TeacherConfig(weight=0.0),
    }
    scorers = {name: TellingScorer() for name in configs}
    group, counts = await build(panel_of(scorers, configs), row_of(**GAPS))
    assert group is not None
    assert [(one.facts["name"], one.facts["weight"]) for one in group.teachers] == [("a", 2.0), ("b", 1.0)]
    assert group.targets is group.teachers[0].targets
    assert [one.targets.ids.shape[1] for one in group.teachers if one.targets] == [2, 3]
    assert group.teachers[0].facts["model"] == "telling"
    assert scorers["off"].asked == []
    assert set(counts.teachers) == {"a", "b"}


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        ({}, ["a"]),
        ({"teacher": "b"}, ["b"]),
        ({"teacher": ["a", "b"]}, ["a", "b"]),
        ({"teacher_weights": {"a": 0}}, []),
        ({"skip_teacher_top_k": True}, []),
        ({"teacher_top_k": -1}, []),
    ],
)
async def test_rows_are_routed_by_their_overrides(overrides: dict[str, Any], asked: list[str]) -> None:
    configs = {"a": TeacherConfig(), "b": TeacherConfig(route="named")}
    scorers = {name: TellingScorer() for name in configs}
    group, counts = await build(panel_of(scorers, configs), row_of(**GAPS, group_overrides=overrides))
    assert [name for name, scorer in scorers.items() if scorer.asked] == asked
    assert (group is None) == (not asked)
    assert counts.masked == ({} if asked else {"no_teacher": 1})


@pytest.mark.parametrize(
    "overrides", [{"teacher": "unknown"}, {"teacher_weights": {"a": "much"}}, {"teacher_weights": [1]}]
)
def test_overrides_that_name_nobody_are_refused(overrides: dict[str, Any]) -> None:
    panel = panel_of({"a": TellingScorer()})
    with pytest.raises(RowError) as caught:
        panel.errands(row_of(**GAPS, group_overrides=overrides))
    assert caught.value.reason == "overrides"


def failing(error: TeacherError, *lengths: int) -> TellingScorer:
    """Fails on sequences of some lengths."""

    async def fail(ids: Sequence[int]) -> None:
        if len(ids) in lengths:
            raise error

    return TellingScorer(fail)


async def test_a_sequence_that_fails_is_masked_and_the_rest_of_its_group_lives() -> None:
    error = TeacherError("no", code="teacher.refused")
    panel = panel_of({"teacher": failing(error, 3)})
    group, counts = await build(panel, row_of(tokens=[[1, 2], [1, 2, 3], [1, 2, 3, 4]]))
    assert group is not None
    assert group.targets is not None
    assert group.targets.counts.tolist() == [1, 0, 3]
    teacher = counts.teachers["teacher"]
    assert (teacher.scored, teacher.masked, teacher.positions) == (2, {"teacher_refused": 1}, 4)
    assert teacher.unscored == {"teacher_refused": 2}
    assert (counts.rows, counts.scored, counts.masked) == (1, 1, {})


async def test_what_one_teacher_cannot_score_another_does() -> None:
    error = TeacherError("no", code="teacher.bad_reply")
    panel = panel_of({"a": failing(error, 2), "b": TellingScorer()})
    group, counts = await build(panel, row_of(tokens=[1, 2]))
    assert group is not None
    assert group.teachers[0].targets is None
    assert group.targets is group.teachers[1].targets
    assert counts.teachers["a"].masked == {"teacher_bad_reply": 1}


async def test_a_row_that_nobody_scored_is_masked_by_its_most_frequent_reason() -> None:
    panel = panel_of({"teacher": failing(TeacherError("no"), 2)}, max_token_length=2)
    group, counts = await build(panel, row_of(tokens=[[1, 2], [1, 2, 3], [1, 2, 3, 4]]))
    assert group is None
    assert (counts.scored, counts.masked) == (0, {"too_long": 1})
    assert counts.teachers["teacher"].masked == {"too_long": 2, "teacher_bad_reply": 1}
    assert counts.teachers["teacher"].unscored == {"too_long": 5, "teacher_bad_reply": 1}


async def test_a_row_of_which_nothing_is_trained_is_masked_unasked() -> None:
    scorer = TellingScorer()
    group, counts = await build(panel_of({"teacher": scorer}), row_of(tokens=[1, 2], masks=[1, -100]))
    assert group is None
    assert scorer.asked == []
    assert counts.masked == {"untrained": 1}


async def test_what_lies_behind_the_teacher_s_longest_sequence_has_no_target() -> None:
    scorer = TellingScorer()
    panel = panel_of({"teacher": scorer}, longest=4)
    group, counts = await build(panel, row_of(tokens=[1, 2, 3, 4, 5, 6]))
    assert scorer.asked == [([1, 2, 3, 4], 2, 1)]
    assert (counts.teachers["teacher"].positions, counts.teachers["teacher"].unscored) == (
        3,
        {"teacher_overlength": 2},
    )
    assert group is not None
    assert group.targets is not None
    assert (group.targets.starts.tolist(), group.targets.counts.tolist()) == ([1], [3])
    masked, counts = await build(
        panel_of({"teacher": scorer}, longest=4), row_of(tokens=[1] * 6, masks=[-100] * 4 + [1] * 2)
    )
    assert masked is None
    assert counts.masked == {"teacher_overlength": 1}


@pytest.mark.parametrize(
    "error",
    [
        TeacherUnreachable("away"),
        TeacherError("no", code="teacher.no_route"),
        TeacherError("no", code="teacher.changed"),
    ],
)
async def test_an_outage_is_no_reason_to_mask_a_row(error: TeacherError) -> None:
    panel, row = panel_of({"teacher": failing(error, 2)}), row_of(tokens=[[1, 2], [1, 2, 3]])
    with pytest.raises(ExceptionGroup) as caught:
        await panel.ask(row, panel.errands(row))
    assert caught.value.exceptions == (error,)

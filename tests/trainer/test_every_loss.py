"""Every loss trains what an environment posts, by its name, alone or with others, however a step is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atroposlib.config.losses.choice import LOSSES
from atroposlib.trainer.run import run
from tests.api.support import serving
from tests.trainer.losses import World, settings_of, step
from tests.trainer.runs import events, make_settings
from tests.trainer.scored_groups import through_wire
from tests.trainer.shards import write_data

READ_BY_NAME = {name: {"teacher", "other"} for name in ("auto", "cross_tokenizer_distillation")} | {
    name: {"other"} for name in ("quotient_distillation", "chunk_likelihood")
}
"""Which teachers' groups a loss learns from; the others read the teacher with the student's tokenizer."""


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_is_the_same_in_one_micro_batch_and_in_several(name: str, world: World) -> None:
    loss = {"name": name, "own_samples": True} if name == "chunk_likelihood" else name
    whole = step(world, loss, micro_batch_size=12)
    assert whole.result.applied
    assert whole.gradient.norm() > 1e-3
    split = step(world, loss, micro_batch_size=3)
    torch.testing.assert_close(split.gradient, whole.gradient, rtol=0, atol=1e-10)
    assert split.result.loss == pytest.approx(whole.result.loss, rel=1e-6)
    assert split.counts == whole.counts


@pytest.mark.parametrize("name", LOSSES)
def test_two_steps_are_trained_from_groups_of_the_wire(name: str, world: World, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", world.raw)
    loss = {"name": name, "own_samples": True} if name == "chunk_likelihood" else name
    settings = settings_of(
        world,
        loss,
        model=str(world.student),
        output_dir=str(tmp_path / "checkpoints"),
        journal_path=str(tmp_path / "journal.jsonl"),
        data=data,
        batch_size=12,
        total_steps=2,
        learning_rate=1e-3,
        threads=1,
    )
    assert run(settings) == 0
    first, second = events(tmp_path, "step")
    assert second["loss"] != first["loss"]
    for told in (first, second):
        assert told["target_tokens"] + sum(told["untrained_rows"].values()) == told["trained_tokens"]
        assert told["loss"] == pytest.approx(sum(one["weight"] * one["loss"] for one in told["terms"]))
    teachers = {one["teacher"] for one in first["terms"] if "teacher" in one}
    if teachers and name != "auto":
        assert teachers == READ_BY_NAME.get(name, {"teacher"})


def test_groups_of_both_kinds_of_teachers_are_trained_from_the_api_by_default(
    world: World, tmp_path: Path
) -> None:
    with serving() as api:
        api.post("/scored_data_list", world.raw)
        settings = make_settings(
            api.url, world.student, tmp_path, batch_size=12, total_steps=1, teachers=world.teachers
        )
        assert run(settings) == 0
    (told,) = events(tmp_path, "step")
    assert told["groups"] == 4
    terms = {(one["name"], one["teacher"]): one for one in told["terms"]}
    assert terms.keys() == {("topk_distillation", "teacher"), ("quotient_distillation", "other")}
    assert terms["topk_distillation", "teacher"]["rows"] > 0
    quotient = terms["quotient_distillation", "other"]
    assert 0 < quotient["captured_mass"] <= quotient["cuts"]
    assert 0 < quotient["teacher_tail_mass"] < quotient["cuts"]


def test_a_list_of_losses_is_their_weighted_sum(world: World) -> None:
    both = step(world, [{"name": "topk_distillation", "weight": 0.5}, {"name": "nll", "weight": 0.25}])
    topk, nll = step(world, "topk_distillation"), step(world, "nll")
    torch.testing.assert_close(both.gradient, 0.5 * topk.gradient + 0.25 * nll.gradient, rtol=0, atol=1e-6)
    assert both.result.loss == pytest.approx(0.5 * topk.result.loss + 0.25 * nll.result.loss)
    assert both.counts.target_tokens == nll.counts.target_tokens == nll.counts.trained_tokens


def test_a_loss_of_weight_0_is_reported_and_moves_nothing(world: World) -> None:
    both = step(world, ["topk_distillation", {"name": "nll", "weight": 0}])
    alone = step(world, "topk_distillation")
    torch.testing.assert_close(both.gradient, alone.gradient, rtol=0, atol=1e-12)
    assert [(one["name"], one["loss"] > 0) for one in both.result.terms] == [
        ("topk_distillation", True),
        ("nll", True),
    ]


def without_generation(world: World) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.items() if key != "inference_logprobs"} for one in world.raw]


def test_a_teacher_s_advantage_needs_the_sampler_s_logprob_and_the_lack_is_counted(world: World) -> None:
    made = step(
        world,
        {"name": "policy_gradient", "advantages": "teacher"},
        through_wire(without_generation(world)),
    )
    assert made.sequences == []
    assert made.counts.target_tokens == 0
    assert made.counts.untrained_rows["no_generation_logprob"] > 0


def test_what_a_loss_of_weight_0_alone_reads_is_not_trained(world: World) -> None:
    made = step(world, ["topk_distillation", {"name": "nll", "weight": 0}], world.groups[2:])
    assert made.sequences == []
    assert +made.counts.untrained_rows == {"no_same_tokenizer_target": made.counts.trained_tokens}


def test_tokens_inside_of_chunks_are_targets_where_the_path_is_read(world: World) -> None:
    path, cells = (step(world, {"name": "quotient_distillation", "path": one}) for one in (True, False))
    (said,) = cells.result.terms
    assert cells.counts.target_tokens == said["cuts"] < path.counts.target_tokens


def test_the_journal_says_what_of_the_chunks_is_not_used(world: World) -> None:
    (said,) = step(world, "quotient_distillation").result.terms
    assert said["minimal_tokens"] + said["partly_trained"] == said["trained_tokens"]
    assert said["paths"] + said["open_end"] == said["cuts"]

"""A teacher's own tokenizer is found by what the settings or the groups say, and never guessed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from atroposlib.align.vocabulary import read_vocabulary
from atroposlib.collate import train_sequences
from atroposlib.collate.across import TokenizerPair
from atroposlib.config.projection import ProjectionBuildSettings
from atroposlib.config.trainer import TrainedTeacher
from atroposlib.errors import ConfigError, RunError
from atroposlib.projection.run import run_build
from atroposlib.trainer.run import run
from atroposlib.trainer.teachers import TeacherPairs
from atroposlib.trainer.terms.build import build_terms, wanted_by
from tests.support.tiny import VOCAB_SIZE
from tests.support.tiny_teacher import write_other_model
from tests.trainer.losses import World, settings_of, step
from tests.trainer.runs import events
from tests.trainer.scored_groups import other_groups, through_wire
from tests.trainer.shards import write_data


def fingerprint(world: World) -> str:
    return read_vocabulary(world.teacher).fingerprint


def test_a_tokenizer_that_the_settings_name_is_taken(world: World) -> None:
    pairs = TeacherPairs(world.student, {"other": TrainedTeacher(tokenizer=str(world.teacher))})
    pair = pairs.of("other", fingerprint(world))
    assert pair.teacher.vocabulary.fingerprint == fingerprint(world)
    assert pairs.of("other", "") is pair


def test_a_tokenizer_that_a_server_handed_out_is_found_by_its_fingerprint(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path))
    for name, source in (("aaa", world.student), ("bbb", world.teacher)):
        place = tmp_path / "served_tokenizers" / name
        place.mkdir(parents=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(source / file, place / file)
    pair = TeacherPairs(world.student, {}).of("other", fingerprint(world))
    assert pair.teacher.vocabulary.fingerprint == fingerprint(world)


def test_a_tokenizer_that_is_not_at_hand_is_told_with_what_to_set(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"teachers\.other\.tokenizer") as caught:
        TeacherPairs(world.student, {}).of("other", fingerprint(world))
    assert caught.value.code == "config.invalid"


def test_another_tokenizer_than_the_groups_were_scored_with_is_refused(world: World) -> None:
    pairs = TeacherPairs(world.student, {"other": TrainedTeacher(tokenizer=str(world.student))})
    with pytest.raises(ConfigError, match="another tokenizer"):
        pairs.of("other", fingerprint(world))


def changed(world: World, **facts: Any) -> list[Any]:
    """The groups with other facts of the teacher that has another tokenizer."""
    raw = json.loads(json.dumps(world.raw))
    for group in raw:
        for entry in group.get("teachers", []):
            entry |= facts
    return through_wire(raw)


def test_a_weight_of_the_settings_wins_over_the_groups(world: World) -> None:
    plain = step(world, "quotient_distillation")
    doubled = step(world, "quotient_distillation", changed(world, weight=2.0))
    teachers = {"other": world.teachers["other"] | {"weight": 1.0}}
    told = step(world, "quotient_distillation", changed(world, weight=2.0), teachers=teachers)
    assert doubled.result.loss == pytest.approx(2 * plain.result.loss)
    assert told.result.loss == pytest.approx(plain.result.loss)


@pytest.mark.parametrize("fact", ["weight", "temperature"])
@pytest.mark.parametrize("value", ["much", -1.0, [1.0]])
def test_a_fact_of_a_teacher_that_is_no_number_is_told(world: World, fact: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"teachers\.other\.{fact}"):
        step(world, "quotient_distillation", changed(world, **{fact: value}))


def test_a_fact_of_a_teacher_that_is_null_is_not_told(world: World) -> None:
    plain = step(world, "quotient_distillation")
    null = step(world, "quotient_distillation", changed(world, weight=None, temperature=None))
    assert null.result.loss == plain.result.loss


@pytest.mark.parametrize(
    "name", ["quotient_distillation", "chunk_likelihood", "cross_tokenizer_distillation"]
)
def test_logprobs_at_another_temperature_are_refused_across_tokenizers(world: World, name: str) -> None:
    loss = {"name": name, "own_samples": True} if name == "chunk_likelihood" else name
    with pytest.raises(ConfigError, match=r"teachers\.other: .* at temperature 1"):
        step(world, loss, changed(world, temperature=2.0))


@pytest.mark.parametrize(
    "loss",
    [
        "truncated_kl",
        "generalized_kl",
        "distillation",
        "kl_estimator",
        {"name": "policy_gradient", "advantages": "teacher"},
    ],
)
def test_logprobs_at_another_temperature_are_refused_by_losses_that_compare_them(
    world: World, loss: Any
) -> None:
    raw = json.loads(json.dumps(world.raw[:2]))
    for group in raw:
        group["teachers"] = [told_of(group, "warm") | {"temperature": 2.0}]
    with pytest.raises(ConfigError, match=r"teachers\.warm: .* at temperature 1"):
        step(world, loss, through_wire(raw), teachers={})


def test_two_teachers_of_a_group_with_one_name_are_refused(world: World) -> None:
    raw = json.loads(json.dumps(world.raw))
    for group in raw[2:]:
        group["teachers"] *= 2
    with pytest.raises(ConfigError, match="one name"):
        step(world, "quotient_distillation", through_wire(raw))


def test_teachers_of_one_name_with_other_tokenizers_are_kept_apart(world: World, tmp_path: Path) -> None:
    """Two environments may call their teachers alike; components of one pair mean nothing in another."""
    other = write_other_model(tmp_path / "second", seed=9)
    file = other / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    ids = content["model"]["vocab"]
    ids["in"], ids["er"] = ids["er"], ids["in"]
    file.write_text(json.dumps(content), encoding="utf-8")
    groups = through_wire(world.raw[2:] + other_groups(world.student, other))
    directories = {read_vocabulary(place).fingerprint: place for place in (world.teacher, other)}
    assert len(directories) == 2
    pairs = {name: TokenizerPair.load(world.student, place) for name, place in directories.items()}
    settings = settings_of(world, "quotient_distillation", teachers={})
    terms = build_terms(settings, VOCAB_SIZE)
    wanted = wanted_by(terms, settings, lambda name, fingerprint: pairs[fingerprint], lambda: 0)
    sequences, _ = train_sequences(groups, max_token_len=64, vocab_size=VOCAB_SIZE, wanted=wanted)
    found = {(source, arrays.pair) for one in sequences for source, arrays in one.chunks.items()}
    # What is joined in a micro-batch is what one source said.
    assert len({source for source, _ in found}) == len(found) == 2


def test_a_chunk_id_of_any_size_costs_no_memory(world: World) -> None:
    plain = step(world, "quotient_distillation")
    raw = json.loads(json.dumps(world.raw))
    for entry in (entry for group in raw for entry in group.get("teachers", [])):
        for name in ("student_chunk_id", "teacher_chunk_id"):
            entry[name] = [[one if one < 0 else one + 2**31 - 999 for one in ids] for ids in entry[name]]
    moved = step(world, "quotient_distillation", through_wire(raw))
    torch.testing.assert_close(moved.gradient, plain.gradient, rtol=0, atol=0)


def told_of(group: dict[str, Any], name: str) -> dict[str, Any]:
    """What a group says in ``distill_token_ids``, as a teacher's entry instead."""
    ids, logprobs = group.pop("distill_token_ids"), group.pop("distill_logprobs")
    return {"name": name, "same_tokenizer": True, "token_ids": ids, "logprobs": logprobs}


def test_a_teacher_of_weight_0_changes_nothing(world: World) -> None:
    teachers = world.teachers | {"other": {"weight": 0.0}}
    without = step(world, "auto", teachers=teachers)
    alone = step(world, "topk_distillation")
    assert (without.gradient - alone.gradient).abs().max() < 1e-12
    assert without.counts.target_tokens == alone.counts.target_tokens


def test_only_the_teachers_that_a_loss_names_are_read(world: World) -> None:
    made = step(world, {"name": "auto", "teachers": ["other"]})
    assert {one["teacher"] for one in made.result.terms} == {"other"}


def test_two_teachers_of_the_same_tokens_add_up_over_one_count(world: World) -> None:
    raw = json.loads(json.dumps(world.raw[:2]))
    for group in raw:
        told = told_of(group, "")
        group["teachers"] = [
            told | {"name": name, "weight": weight} for name, weight in (("a", 0.75), ("b", 0.25))
        ]
    both = step(world, "topk_distillation", through_wire(raw), teachers={})
    alone = step(world, "topk_distillation", world.groups[:2])
    assert both.result.loss == pytest.approx(alone.result.loss)
    assert {one["teacher"] for one in both.result.terms} == {"a", "b"}
    assert both.counts.target_tokens == alone.counts.target_tokens


def run_on(world: World, groups: list[dict[str, Any]], tmp_path: Path, loss: Any) -> None:
    settings = settings_of(
        world,
        loss,
        model=str(world.student),
        output_dir=str(tmp_path / "checkpoints"),
        journal_path=str(tmp_path / "journal.jsonl"),
        data=write_data(tmp_path / "data", groups),
        batch_size=4,
        total_steps=4,
        threads=1,
    )
    run(settings)


def test_chunk_likelihood_alone_is_refused_on_the_student_s_own_samples(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="own samples") as caught:
        run_on(world, world.raw, tmp_path, "chunk_likelihood")
    assert caught.value.code == "config.invalid"
    (end,) = events(tmp_path, "end")
    assert (end["reason"], end["groups_trained"]) == ("config.invalid", 0)


def test_chunk_likelihood_is_taken_for_text_that_the_student_did_not_sample(
    world: World, tmp_path: Path
) -> None:
    foreign = [
        {name: value for name, value in group.items() if name != "inference_logprobs"} for group in world.raw
    ]
    run_on(world, foreign, tmp_path, "chunk_likelihood")
    assert len(events(tmp_path, "step")) == 4


def without_top_k(world: World) -> list[dict[str, Any]]:
    raw = json.loads(json.dumps(world.raw[2:]))
    for group in raw:
        for name in ("token_ids", "logprobs"):
            rows = group["teachers"][0][name]
            group["teachers"][0][name] = [[row[:1] for row in sequence] for sequence in rows]
    return list(raw)


def test_a_teacher_without_top_k_teaches_nothing_by_default_and_the_run_says_so(
    world: World, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="no_top_k") as caught:
        run_on(world, without_top_k(world), tmp_path, "auto")
    assert caught.value.code == "train.no_target"
    assert "teacher_top_k" in str(caught.value)


def test_minimal_chunks_need_no_top_k(world: World) -> None:
    groups = through_wire(without_top_k(world))
    made = step(world, {"name": "chunk_likelihood", "debiased": False, "own_samples": True}, groups)
    assert made.counts.target_tokens > 0.8 * made.counts.trained_tokens
    debiased = step(world, {"name": "chunk_likelihood", "own_samples": True}, groups)
    assert debiased.counts.target_tokens == 0
    assert debiased.counts.untrained_rows["no_top_k"] > 0


def test_a_projection_of_another_teacher_is_refused(world: World, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.safetensors"
    run_build(ProjectionBuildSettings(student=str(world.student), teacher=str(world.student), output=wrong))
    other = {**world.teachers["other"], "projection": str(wrong)}
    with pytest.raises(ConfigError, match=r"teachers\.other\.projection.*another tokenizer"):
        step(world, "cross_tokenizer_distillation", teachers={"teacher": {}, "other": other})


def test_a_teacher_of_numbered_losses_has_to_be_told(world: World) -> None:
    with pytest.raises(ConfigError, match=r"teachers\.NAME\.projection"):
        step(world, "cross_tokenizer_distillation", teachers={})
    with pytest.raises(ConfigError, match=r"teachers\.other\.projection"):
        step(world, "cross_tokenizer_distillation", teachers={"other": {}})

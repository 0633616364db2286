"""The summary's figures on made-up journals, each checked by hand."""

from __future__ import annotations

import json

import pytest

from atroposlib.demo.summary import count_groups, summarize
from tests.demo.journals import rollout, status, step, two_steps, two_vocabularies

FACTS = {"outcome": "finished", "backend": "embedded", "seconds": 40.0}
REQUIRED = {
    "backend",
    "steps",
    "kl_start",
    "kl_end",
    "tokens_trained",
    "teacher_token_frac",
    "captured_mass",
    "overlap_share",
    "groups_received",
    "groups_trained",
    "groups_leased",
    "groups_queued",
    "groups_dead",
    "groups_dropped",
    "policy_versions",
    "seconds",
}


def test_figures_of_a_whole_run() -> None:
    summary = summarize(two_steps(), status(received=7, trained=5, queued=2), FACTS)
    assert summary.keys() >= REQUIRED
    assert summary["steps"] == 2
    assert (summary["kl_start"], summary["kl_end"], summary["kl_ratio"]) == (8.0, 3.0, 0.375)
    assert summary["tokens_trained"] == 200
    assert summary["teacher_token_frac"] == 1.0
    assert summary["captured_mass"] == pytest.approx(0.9)
    # Of the steps 10-20 and 21-31, work ran beside 10-15 and 21-31.
    assert summary["overlap_share"] == pytest.approx(15 / 20)
    assert summary["policy_versions"] == [0, 1]
    assert summary["refreshes_confirmed"] == 2
    # 120 tokens in 0-8, 21-33.
    assert summary["rollout_tokens_per_s"] == pytest.approx(120 / 20)
    assert summary["groups_balanced"] is True


def test_figures_of_bytes_and_chunks_are_those_of_evaluator_trainer_and_environment() -> None:
    summary = summarize(two_vocabularies(), None, {**FACTS, "same_tokenizer": False})
    assert (summary["kl_start"], summary["kl_end"], summary["kl_over"]) == (1.0, 0.8, 90)
    bits = [summary[f"bits_per_byte_{name}"] for name in ("start", "end", "teacher")]
    assert bits == [1.4, 1.3, 1.1]
    assert summary["held_out_chunk_coverage"] == 1.0
    assert summary["held_out_masked"] == {"cut_end": 1}
    # Of 60 and 40 tokens, 4 are cut off words, 93 have a target, and 3 are in no chunk for another reason.
    assert summary["rollout_chunk_coverage"] == pytest.approx(93 / 96)
    assert summary["rollout_masked"] == {"cut_end": 4, "not_equal": 3}
    assert summary["teacher_tail_mass"] == pytest.approx((4.0 + 9.0) / (40 + 60))
    assert summary["student_tail_mass"] == pytest.approx((8.0 + 15.0) / (40 + 60))


def test_a_run_across_tokenizers_that_was_cut_short_has_nulls() -> None:
    summary = summarize({}, None, {**FACTS, "same_tokenizer": False})
    for name in (
        "bits_per_byte_end",
        "held_out_chunk_coverage",
        "rollout_chunk_coverage",
        "student_tail_mass",
    ):
        assert summary[name] is None
    json.dumps(summary, allow_nan=False)


def test_one_tokenizer_has_no_figures_of_bytes() -> None:
    assert "bits_per_byte_end" not in summarize(two_steps(), None, FACTS)


def test_tokens_without_a_target_are_not_counted_as_trained() -> None:
    parts = {**two_steps(), "trainer": [step(1, 0.0, 5.0, target_tokens=40), step(2, 5.0, 9.0)]}
    summary = summarize(parts, None, FACTS)
    assert summary["tokens_trained"] == 140
    assert summary["teacher_token_frac"] == pytest.approx(140 / 200)


def test_a_run_cut_short_has_nulls_and_no_guesses() -> None:
    summary = summarize({}, None, FACTS)
    assert summary.keys() >= REQUIRED
    for name in ("kl_start", "kl_end", "teacher_token_frac", "captured_mass", "overlap_share"):
        assert summary[name] is None
    assert summary["groups_received"] is None
    assert summary["groups_balanced"] is None
    assert summary["steps"] == summary["tokens_trained"] == 0
    json.dumps(summary, allow_nan=False)


def test_kl_end_is_missing_until_a_trained_student_was_measured() -> None:
    parts = two_steps()
    parts["evaluator"] = [event for event in parts["evaluator"] if event.get("step") == 0]
    summary = summarize(parts, None, FACTS)
    assert summary["kl_start"] == 8.0
    assert summary["kl_end"] is None


def test_tokens_without_a_target_lower_the_teacher_share() -> None:
    parts = {"trainer": [step(1, 0, 1, target_tokens=50, captured_mass=0.6), step(2, 1, 2)]}
    summary = summarize(parts, None, FACTS)
    assert summary["teacher_token_frac"] == pytest.approx(150 / 200)
    assert summary["captured_mass"] == pytest.approx((0.6 * 50 + 0.9 * 100) / 150)


def test_a_step_without_any_target_has_no_say_in_the_captured_mass() -> None:
    parts = {"trainer": [step(1, 0, 1, target_tokens=0, captured_mass=None), step(2, 1, 2)]}
    assert summarize(parts, None, FACTS)["captured_mass"] == pytest.approx(0.9)


def test_groups_handed_over_but_not_trained_are_leased() -> None:
    steps = [step(1, 0, 1), step(2, 1, 2)]
    counts = count_groups(status(received=9, trained=6, queued=3), steps, [])
    assert (counts.trained, counts.leased, counts.queued) == (4, 2, 3)
    assert counts.balanced


def test_drops_of_api_and_trainer_add_up_by_reason() -> None:
    dropped = [{"kind": "dropped", "time": 1, "reason": "too_long", "groups": 1}]
    api = status(received=6, trained=3, dropped={"too_long": 2, "stale": 1})
    counts = count_groups(api, [step(1, 0, 1)], dropped)
    assert counts.dropped == {"too_long": 3, "stale": 1}
    assert counts.balanced


def test_a_lost_group_is_noticed() -> None:
    counts = count_groups(status(received=3, trained=2), [step(1, 0, 1)], [])
    assert not counts.balanced


def test_a_group_trained_twice_is_noticed() -> None:
    steps = [step(1, 0, 1), step(2, 1, 2, group_ids=["1a", "2b"])]
    counts = count_groups(status(received=4, trained=4), steps, [])
    assert counts.trained_twice == 1
    assert not counts.balanced


def test_a_group_trained_that_the_api_never_gave_is_noticed() -> None:
    counts = count_groups(status(received=2, trained=1, queued=1), [step(1, 0, 1)], [])
    assert counts.leased < 0
    assert not counts.balanced


def test_rollouts_outside_the_steps_do_not_count_as_overlap() -> None:
    parts = {"trainer": [step(1, 10, 20)], "environment": [rollout(0, 10), rollout(20, 30)]}
    assert summarize(parts, None, FACTS)["overlap_share"] == 0.0

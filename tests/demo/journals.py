"""Journals of a made-up run, with figures that are easy to check by hand."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]


def step(number: int, start: float, end: float, **changes: Any) -> Event:
    """A trainer's ``step`` event of two groups, 8 sequences and 100 trained tokens of 500."""
    event = {
        "kind": "step",
        "time": end,
        "start": start,
        "step": number,
        "loss": 4.0 / number,
        "tokens": 500,
        "trained_tokens": 100,
        "target_tokens": 100,
        "sequences": 8,
        "groups": 2,
        "group_ids": [f"{number}a", f"{number}b"],
        "learning_rate": 1e-3,
        "grad_norm": 1.0,
        "captured_mass": 0.9,
        "policy_versions": [number - 1],
        "wait_s": 0.5,
    }
    return {**event, **changes}


def rollout(start: float, end: float) -> Event:
    """An environment's ``rollout`` event of 40 tokens."""
    return {
        "kind": "rollout",
        "time": end,
        "start": start,
        "sequences": 4,
        "tokens": 40,
        "policy_version": 0,
    }


def teacher(start: float, end: float, **changes: Any) -> Event:
    """An environment's ``teacher`` event of 80 tokens."""
    event = {"kind": "teacher", "time": end, "start": start, "sequences": 4, "tokens": 80, "failed": 0}
    return {**event, **changes}


def evaluation(number: int, kl: float, at: float) -> Event:
    """An evaluator's ``eval`` event."""
    return {"kind": "eval", "time": at, "start": at - 1, "step": number, "kl": kl, "tokens": 576}


def evaluation_across(number: int, kl: float, bits: float, at: float) -> Event:
    """An evaluator's ``eval`` event of two models with different tokenizers."""
    return {
        "kind": "eval",
        "time": at,
        "start": at - 1,
        "step": number,
        "kl": kl,
        "bits_per_byte": bits,
        "teacher_bits_per_byte": 1.1,
        "cuts": 90,
        "bytes": 400,
        "text_tokens": 101,
        "masked": {"cut_end": 1},
        "chunk_coverage": 1.0,
    }


def sample(role: str, number: int, text: str, index: int = 0) -> Event:
    """An evaluator's ``sample`` event."""
    messages = [{"role": "user", "content": f"Question {index}?"}]
    return {
        "kind": "sample",
        "time": 1.0,
        "role": role,
        "step": number,
        "index": index,
        "messages": messages,
        "text": text,
    }


def refresh(number: int, at: float, *, confirmed: bool = True) -> Event:
    """A trainer's ``refresh`` event."""
    return {
        "kind": "refresh",
        "time": at,
        "start": at - 0.5,
        "step": number,
        "version": f"step-{number}",
        "confirmed": confirmed,
    }


def status(**groups: Any) -> dict[str, Any]:
    """An answer of GET /v1/status."""
    counts = {"received": 0, "queued": 0, "leased": 0, "trained": 0, "dropped": {}, "dead": 0, **groups}
    return {"step": 2, "queue": {"groups": counts["queued"], "sequences": 0}, "groups": counts}


def two_vocabularies() -> dict[str, list[Event]]:
    """The run of :func:`two_steps` with a teacher that has another tokenizer."""
    terms = [
        {"name": "quotient_distillation", "cuts": 40, "teacher_tail_mass": 4.0, "student_tail_mass": 8.0},
        {"name": "quotient_distillation", "cuts": 60, "teacher_tail_mass": 9.0, "student_tail_mass": 15.0},
    ]
    return {
        "trainer": [step(1, 10, 20, terms=terms[:1]), step(2, 21, 31, terms=terms[1:])],
        "environment": [
            rollout(0, 8),
            teacher(8, 15, positions=60, scored=57),
            {"kind": "targets_masked", "time": 15, "group_id": "a", "cut_end": 2, "not_equal": 1},
            teacher(15, 16, positions=40, scored=36),
            {"kind": "targets_masked", "time": 16, "group_id": "b", "cut_end": 2, "not_equal": 2},
        ],
        "evaluator": [evaluation_across(0, 1.0, 1.4, 6), evaluation_across(2, 0.8, 1.3, 36)],
        "demo": [],
    }


def two_steps() -> dict[str, list[Event]]:
    """Two steps with rollouts beside half of the first and all of the second."""
    return {
        "trainer": [step(1, 10, 20), refresh(1, 21), step(2, 21, 31), refresh(2, 32)],
        "environment": [rollout(0, 8), teacher(8, 15), rollout(21, 28), rollout(27, 33)],
        "evaluator": [
            sample("teacher", 0, "Paris."),
            evaluation(0, 8.0, 6),
            sample("student", 0, "TheThe"),
            evaluation(2, 3.0, 36),
            sample("student", 2, "Paris!"),
        ],
        "demo": [{"kind": "phase", "time": 5.0, "start": 0.0, "name": "servers start"}],
    }

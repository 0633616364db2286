"""The figures of a run, computed from the journals of its parts and the API's counters alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.align.views.reasons import CUT_CHARACTER, CUT_END, REASONS
from atroposlib.demo.intervals import Interval, length, overlap, union

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What became of every group that the API received.

    Attributes:
        received: Accepted by the API.
        trained: In an optimizer step, by the trainer's own account.
        leased: Handed to the trainer, and neither trained nor dropped by it.
        queued: Still waiting.
        dropped: Refused for training after they were received, by reason; the API's and the trainer's.
        dead: Given up after too many deliveries.
        trained_twice: Deliveries of a group that had been trained before; 0 in a sound run.
    """

    received: int
    trained: int
    leased: int
    queued: int
    dropped: dict[str, int]
    dead: int
    trained_twice: int

    @property
    def balanced(self) -> bool:
        """Whether every received group is accounted for, exactly once."""
        known = self.trained + self.leased + self.queued + sum(self.dropped.values()) + self.dead
        return self.received == known and self.leased >= 0 and self.trained_twice == 0


def of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    """The events of one kind, in order."""
    return [event for event in events if event["kind"] == kind]


def count_groups(status: Event, steps: Sequence[Event], trainer_drops: Sequence[Event]) -> GroupCounts:
    """Account for every group.

    What the API calls trained, it has handed over whole; the trainer's journal says which it trained.

    Args:
        status: Answer of GET /v1/status once nothing is sent or fetched any more.
        steps: The trainer's ``step`` events.
        trainer_drops: The trainer's ``dropped`` events.
    """
    groups = status["groups"]
    trained = sum(step["groups"] for step in steps)
    named = Counter(group_id for step in steps for group_id in step["group_ids"] if group_id is not None)
    dropped = Counter(dict(groups["dropped"]))
    for event in trainer_drops:
        dropped[event["reason"]] += event["groups"]
    trainer_dropped = sum(event["groups"] for event in trainer_drops)
    return GroupCounts(
        received=groups["received"],
        trained=trained,
        leased=groups["leased"] + groups["trained"] - trained - trainer_dropped,
        queued=groups["queued"],
        dropped=dict(dropped),
        dead=groups["dead"],
        trained_twice=named.total() - len(named),
    )


def overlap_share(steps: Sequence[Event], environment: Sequence[Event]) -> float | None:
    """Share of the optimizer's step time during which rollouts or teacher scoring ran; None without steps."""
    stepping = union(_interval(event) for event in steps)
    if not stepping:
        return None
    working = [*of_kind(environment, "rollout"), *of_kind(environment, "teacher")]
    return overlap(stepping, union(_interval(event) for event in working)) / length(stepping)


def token_weighted(steps: Sequence[Event], field: str, weight: str) -> float | None:
    """Mean of a per-step figure weighted by a token count of the step; None when nothing was counted."""
    known = [step for step in steps if step[field] is not None and step[weight] > 0]
    total = sum(step[weight] for step in known)
    return sum(step[field] * step[weight] for step in known) / total if total else None


def rate(events: Sequence[Event], field: str = "tokens") -> float | None:
    """Units of ``field`` a second while at least one of the events ran; None without events."""
    seconds = length(union(_interval(event) for event in events))
    return sum(event[field] for event in events) / seconds if seconds > 0 else None


def summarize(
    parts: Mapping[str, Sequence[Event]], status: Event | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The summary of a run.

    Args:
        parts: The events of each part's journal; a part without one may be missing.
        status: Last answer of the API's GET /v1/status; None when it could not be had.
        facts: Members known without the journals, such as backend and seconds; they come first.

    Returns:
        The members of summary.json. What could not be measured is None, never guessed.
    """
    trainer, environment = parts.get("trainer", ()), parts.get("environment", ())
    steps, evals = of_kind(trainer, "step"), of_kind(parts.get("evaluator", ()), "eval")
    marked, targets = (sum(step[name] for step in steps) for name in ("trained_tokens", "target_tokens"))
    return {
        **facts,
        "steps": len(steps),
        **_held_out(evals),
        **({} if facts.get("same_tokenizer", True) else _across(evals, steps, environment)),
        "loss_first": steps[0]["loss"] if steps else None,
        "loss_last": steps[-1]["loss"] if steps else None,
        "tokens_trained": targets,
        "teacher_token_frac": targets / marked if marked else None,
        "captured_mass": token_weighted(steps, "captured_mass", "target_tokens"),
        "overlap_share": overlap_share(steps, environment),
        **_group_members(status, steps, of_kind(trainer, "dropped")),
        "groups_dropped_by_environment": _drops(of_kind(environment, "group_dropped")),
        "policy_versions": sorted(
            {version for step in steps for version in step["policy_versions"]} - {None}
        ),
        "policy_changes_during_rollouts": len(of_kind(environment, "policy_changed")),
        "refreshes_confirmed": sum(event["confirmed"] for event in of_kind(trainer, "refresh")),
        "rollout_tokens_per_s": rate(of_kind(environment, "rollout")),
        "teacher_tokens_per_s": rate(of_kind(environment, "teacher")),
        "trainer_tokens_per_s": rate(steps),
        "trainer_wait_s": sum(step["wait_s"] for step in steps),
    }


def _held_out(evals: Sequence[Event]) -> dict[str, Any]:
    """The evaluator's KL."""
    kl = {event["step"]: event["kl"] for event in evals}
    ended = max(kl, default=0)
    last = evals[-1] if evals else {}
    return {
        "kl_start": kl.get(0),
        "kl_end": kl[ended] if ended > 0 else None,
        "kl_end_step": ended if ended > 0 else None,
        "kl_ratio": kl[ended] / kl[0] if ended > 0 and kl.get(0) else None,
        "kl_by_step": [[event["step"], event["kl"]] for event in evals],
        "kl_over": last.get("cuts", last.get("tokens")),
    }


def _across(evals: Sequence[Event], steps: Sequence[Event], environment: Sequence[Event]) -> dict[str, Any]:
    """What only a run with two tokenizers has: bits per byte, and how much of the text is in chunks."""
    bits = {event["step"]: event["bits_per_byte"] for event in evals}
    ended = max(bits, default=0)
    last = evals[-1] if evals else {}
    terms = [term for step in steps for term in step.get("terms", ()) if "cuts" in term]
    cuts = sum(term["cuts"] for term in terms)
    return {
        "bits_per_byte_start": bits.get(0),
        "bits_per_byte_end": bits[ended] if ended > 0 else None,
        "bits_per_byte_teacher": last.get("teacher_bits_per_byte"),
        "bits_per_byte_by_step": [[event["step"], event["bits_per_byte"]] for event in evals],
        "held_out_bytes": last.get("bytes"),
        "held_out_chunk_coverage": last.get("chunk_coverage"),
        "held_out_masked": last.get("masked"),
        "rollout_chunk_coverage": _rollout_coverage(environment),
        "rollout_masked": dict(_masked(environment)),
        **{f"{side}_tail_mass": _tail_mass(terms, side, cuts) for side in ("teacher", "student")},
    }


def _tail_mass(terms: Sequence[Event], side: str, cuts: int) -> float | None:
    """Mean probability that a model gives, at a safe cut, to what the teacher's top tokens do not name."""
    return sum(term[f"{side}_tail_mass"] for term in terms) / cuts if cuts else None


def _masked(environment: Sequence[Event]) -> Counter[str]:
    """Tokens of rollouts without a target of the teacher, by reason."""
    counts: Counter[str] = Counter()
    for event in of_kind(environment, "targets_masked"):
        counts.update({name: event[name] for name in REASONS if name in event})
    return counts


def _rollout_coverage(environment: Sequence[Event]) -> float | None:
    """Share of rollout tokens in chunks among those that are not masked because a word was cut off."""
    asked = of_kind(environment, "teacher")
    masked = _masked(environment)
    wanted = sum(event["positions"] for event in asked) - masked[CUT_END] - masked[CUT_CHARACTER]
    return sum(event["scored"] for event in asked) / wanted if wanted else None


def _group_members(
    status: Event | None, steps: Sequence[Event], trainer_drops: Sequence[Event]
) -> dict[str, Any]:
    names = ("received", "trained", "leased", "queued", "dropped", "dead")
    if status is None:
        return {**{f"groups_{name}": None for name in names}, "groups_balanced": None}
    counts = count_groups(status, steps, trainer_drops)
    members: dict[str, Any] = {f"groups_{name}": getattr(counts, name) for name in names}
    return {**members, "groups_trained_twice": counts.trained_twice, "groups_balanced": counts.balanced}


def _drops(events: Sequence[Event]) -> dict[str, int]:
    return dict(Counter(event["reason"] for event in events))


def _interval(event: Event) -> Interval:
    return (event["start"], event["time"])

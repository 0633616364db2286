"""What became of every row: ``rows = scored + masked(reason) + refused(reason)``, in shards and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atroposlib.scoring.rows import Refusal

MOST_LISTED = 100
"""Refused rows that the summary lists; the shards' manifests list all of theirs."""


@dataclass
class TeacherCounts:
    """One teacher's part.

    Attributes:
        scored: Sequences that it scored.
        masked: Sequences that it did not score, by reason.
        positions: Positions with a target.
        unscored: Positions that were to have one and have none, by reason.
    """

    scored: int = 0
    masked: Counter[str] = field(default_factory=Counter)
    positions: int = 0
    unscored: Counter[str] = field(default_factory=Counter)

    def add(self, other: TeacherCounts) -> None:
        """Count what another counted."""
        self.scored += other.scored
        self.masked.update(other.masked)
        self.positions += other.positions
        self.unscored.update(other.unscored)


@dataclass
class Counts:
    """What became of the rows of a shard, or of all.

    Attributes:
        rows: All rows.
        scored: Rows with a target of at least one teacher; only these have a frame.
        masked: Rows without any, by the most frequent reason of their sequences.
        refused: Rows that are none, by reason.
        untold_replies: Replies that are not trained in rows that are not refused, by reason.
        sequences: Sequences of the rows that are not refused.
        tokens: Their tokens.
        bytes: Size of the frames.
        teachers: By name.
        refusals: ``row`` (from 0), ``reason`` and ``detail`` of refused rows.
    """

    rows: int = 0
    scored: int = 0
    masked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    untold_replies: Counter[str] = field(default_factory=Counter)
    sequences: int = 0
    tokens: int = 0
    bytes: int = 0
    teachers: dict[str, TeacherCounts] = field(default_factory=dict)
    refusals: list[dict[str, Any]] = field(default_factory=list)

    def refuse(self, refusal: Refusal) -> None:
        """Count a row that is none."""
        self.rows += 1
        self.refused[refusal.reason] += 1
        self.refusals.append(
            {"row": refusal.number, "reason": refusal.reason, "detail": refusal.detail[:300]}
        )

    def add(self, other: Counts) -> None:
        """Count what another counted; of its refused rows no more than the summary lists."""
        self.rows += other.rows
        self.scored += other.scored
        self.masked.update(other.masked)
        self.refused.update(other.refused)
        self.untold_replies.update(other.untold_replies)
        self.sequences += other.sequences
        self.tokens += other.tokens
        self.bytes += other.bytes
        for name, theirs in other.teachers.items():
            self.teachers.setdefault(name, TeacherCounts()).add(theirs)
        self.refusals += other.refusals[: max(0, MOST_LISTED - len(self.refusals))]

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        teachers = {
            name: vars(one) | {"masked": dict(one.masked), "unscored": dict(one.unscored)}
            for name, one in self.teachers.items()
        }
        return vars(self) | {
            "masked": dict(self.masked),
            "refused": dict(self.refused),
            "untold_replies": dict(self.untold_replies),
            "teachers": teachers,
        }


def counts_of(facts: Mapping[str, Any]) -> Counts:
    """The counts that :meth:`Counts.facts` told."""
    teachers = {
        name: TeacherCounts(
            **(one | {"masked": Counter(one["masked"]), "unscored": Counter(one["unscored"])})
        )
        for name, one in facts["teachers"].items()
    }
    counted = {
        **facts,
        "masked": Counter(facts["masked"]),
        "refused": Counter(facts["refused"]),
        "untold_replies": Counter(facts["untold_replies"]),
        "teachers": teachers,
    }
    return Counts(**counted)

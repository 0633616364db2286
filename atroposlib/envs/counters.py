"""What an environment has done so far: groups sent, dropped by reason, teacher failures, policy changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Coverage:
    """Positions that a teacher was to score, and those that it has scored."""

    wanted: int = 0
    scored: int = 0


@dataclass
class Counters:
    """Counts since the environment started. Each dropped group is counted under one reason.

    Attributes:
        sent: Groups that the trajectory API took, or that were written to a file without one.
        sequences: Sequences of these groups.
        dropped: Groups, or items that gave none, by reason.
        masked: Target rows and other parts of groups that were left out before sending, by reason; see
            :func:`atroposlib.envs.frames.frame_of`.
        teacher_failures: Sequences that a teacher could not score, by the error's code.
        teachers: What each teacher was to score and has scored.
        requeued: Times that a group went back to be completed again, by reason.
        policy_changes: Rollouts during which the student's weights changed.
        retried: Items that went back to the backlog after a failure.
    """

    sent: int = 0
    sequences: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    masked: Counter[str] = field(default_factory=Counter)
    teacher_failures: Counter[str] = field(default_factory=Counter)
    teachers: dict[str, Coverage] = field(default_factory=dict)
    requeued: Counter[str] = field(default_factory=Counter)
    policy_changes: int = 0
    retried: int = 0

    def line(self) -> str:
        """The counts in one line, for the log."""
        return (
            f"sent {self.sent} groups ({self.sequences} sequences), dropped {_by_reason(self.dropped)}, "
            f"masked targets {_by_reason(self.masked)}, "
            f"teacher failures {_by_reason(self.teacher_failures)}, "
            f"{self._coverage()}requeued {_by_reason(self.requeued)}, policy changes {self.policy_changes}, "
            f"retried {self.retried}"
        )

    def _coverage(self) -> str:
        shares = [
            f"{name} {one.scored / one.wanted:.1%}" for name, one in self.teachers.items() if one.wanted
        ]
        return f"positions scored by {', '.join(shares)}, " if shares else ""


def _by_reason(counts: Counter[str]) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    return f"{counts.total()}{f' ({reasons})' if reasons else ''}"

"""What the parts of a run have done so far, read from their journals as these grow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.demo.files import JOURNALS, RunFiles

Event = dict[str, Any]
RATE_WINDOW_S = 30.0


class JournalTail:
    """Reads the lines that a journal has gained since the last look."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def read(self) -> list[Event]:
        """The new whole lines; a line that is still being written waits for the next call."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as handle:
            handle.seek(self._offset)
            data = handle.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


@dataclass(slots=True)
class Rate:
    """Tokens a second over the last :data:`RATE_WINDOW_S` seconds."""

    events: list[tuple[float, int]] = field(default_factory=list)

    def add(self, at: float, tokens: int) -> None:
        """Count tokens that were done at a time (seconds since the epoch)."""
        self.events.append((at, tokens))

    def value(self, now: float) -> float:
        """The rate at a time."""
        self.events = [event for event in self.events if event[0] > now - RATE_WINDOW_S]
        return sum(tokens for _, tokens in self.events) / RATE_WINDOW_S


@dataclass(slots=True)
class Progress:
    """The state that the live view shows.

    Attributes:
        steps: Optimizer steps to take.
        started: When the run began, in seconds since the epoch.
        unit: What the loss and the held-out KL are means over: token, or safe cut across tokenizers.
        parts: State of each process in a word or two.
        done: Optimizer steps taken.
        kl: Held-out KL by step, nats per ``unit``.
        losses: Training loss of each step, nats per ``unit``.
        queue: Sequences queued in the API; None before it answered.
        policy_version: Weights that the student's server runs.
        groups_sent: Groups that the environment has sent.
        groups_dropped: Groups that the environment has dropped.
    """

    steps: int
    started: float = field(default_factory=time.time)
    unit: str = "token"
    parts: dict[str, str] = field(default_factory=dict)
    done: int = 0
    kl: dict[int, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    queue: int | None = None
    policy_version: int = 0
    groups_sent: int = 0
    groups_dropped: int = 0
    rollouts: Rate = field(default_factory=Rate)
    scores: Rate = field(default_factory=Rate)
    training: Rate = field(default_factory=Rate)

    def take(self, event: Event) -> str | None:
        """Count one event; returns what is worth a line of the log, if anything."""
        handler = HANDLERS.get(event["kind"])
        return handler(self, event) if handler else None


def _rollout(progress: Progress, event: Event) -> None:
    progress.rollouts.add(event["time"], event["tokens"])


def _teacher(progress: Progress, event: Event) -> str | None:
    progress.scores.add(event["time"], event["tokens"])
    failed = event["failed"]
    return f"teacher: {failed} sequences could not be scored and are masked" if failed else None


def _group_sent(progress: Progress, event: Event) -> None:
    progress.groups_sent += 1


def _group_dropped(progress: Progress, event: Event) -> str:
    progress.groups_dropped += 1
    return f"environment: dropped a group ({event['reason']})"


def _step(progress: Progress, event: Event) -> str:
    progress.done = event["step"]
    progress.losses.append(event["loss"])
    progress.training.add(event["time"], event["tokens"])
    seconds = event["time"] - event["start"]
    return (
        f"trainer: step {event['step']}/{progress.steps}, loss {event['loss']:.3f} nats/{progress.unit}, "
        f"{event['target_tokens']} tokens trained in {seconds:.1f} s, waited {event['wait_s']:.1f} s"
    )


def _refresh(progress: Progress, event: Event) -> str:
    if not event["confirmed"]:
        return f"student: step-{event['step']} was not confirmed"
    progress.policy_version = event["step"]
    return f"student: now runs the weights of step {event['step']}"


def _eval(progress: Progress, event: Event) -> str:
    progress.kl[event["step"]] = event["kl"]
    line = f"evaluator: held-out KL {event['kl']:.3f} nats/{progress.unit} after step {event['step']}"
    bits = event.get("bits_per_byte")
    return line if bits is None else f"{line}, {bits:.3f} bits/byte"


HANDLERS: dict[str, Callable[[Progress, Event], str | None]] = {
    "rollout": _rollout,
    "teacher": _teacher,
    "group_sent": _group_sent,
    "group_dropped": _group_dropped,
    "step": _step,
    "refresh": _refresh,
    "eval": _eval,
}


class Follower:
    """Feeds the growing journals of a run into its progress."""

    def __init__(self, files: RunFiles, progress: Progress) -> None:
        self._tails = [JournalTail(files.journal(part)) for part in JOURNALS]
        self._progress = progress

    def update(self) -> list[str]:
        """Take in what is new; returns the lines worth logging."""
        events = [event for tail in self._tails for event in tail.read()]
        lines = [self._progress.take(event) for event in sorted(events, key=lambda event: event["time"])]
        return [line for line in lines if line is not None]

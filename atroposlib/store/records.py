"""What a store remembers, and the small changes by which it moves from one state to the next.

Every operation first computes its changes from the present :class:`atroposlib.store.ledger.Ledger`; an engine
makes them durable and then applies them. So nothing is ever half done, and all engines behave alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from atroposlib.store.protocol import EnvRecord
from atroposlib.wire.posted import GroupFacts
from atroposlib.wire.registrations import Registration

State = Literal["leased", "due", "acked", "dead"]
Cause = Literal["expired", "refused", "withdrawn"]
Outcome = Literal["committed", "dissolved"]


@dataclass(frozen=True, slots=True)
class Held:
    """A group that is kept.

    Attributes:
        facts: What is known of it without its bytes.
        arrival: Its place in the order of all groups that ever came.
        arrived_at: Unix seconds.
    """

    facts: GroupFacts
    arrival: int
    arrived_at: float


@dataclass(frozen=True, slots=True)
class Due:
    """Why a batch has to be delivered again, or is dead.

    Attributes:
        cause: Its lease ``expired`` (it may still be renewed or acked), was ``refused`` (it may still be
            acked), or was ``withdrawn`` when its trainer came back or was forgotten: that one's word no
            longer counts.
        reason: The same for people.
        since: Unix seconds.
        trainer_id: Who had it last.
        order: Its place among the batches reserved for ``trainer_id``; None when anyone may have it.
    """

    cause: Cause
    reason: str
    since: float
    trainer_id: str
    order: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that is not settled.

    Attributes:
        batch_id: Its name.
        number: Its place in the order in which batches were formed.
        group_ids: Its groups, oldest first.
        sequences: Their sequences together.
        state: Where it is.
        trainer_id: Who has it, or had it last.
        attempt: Deliveries so far.
        expires_at: When its latest lease ends or ended, unix seconds.
        acked_attempt: The attempt that was acked last; 0 when none was, so the step does not count it yet.
        order: Its place among all acks, once acked.
        due: Set while it is due or dead, and kept while it is delivered again.
    """

    batch_id: str
    number: int
    group_ids: tuple[str, ...]
    sequences: int
    state: State
    trainer_id: str
    attempt: int
    expires_at: float
    acked_attempt: int = 0
    order: int = 0
    due: Due | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A settled batch, remembered so that a repeated request is answered."""

    batch_id: str
    outcome: Outcome
    trainer_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of the run beside its environments and trainers; see ``RunState``."""

    registration: Registration | None = None
    step: int = 0
    started: bool = False


@dataclass(frozen=True, slots=True)
class TrainerFacts:
    """What is known of a trainer beside its batches; see ``TrainerRecord``."""

    trainer_id: str
    last_seen: float
    last_committed: str | None = None


@dataclass(frozen=True, slots=True)
class GroupAdded:
    """A group was accepted. ``payload`` is its bytes, empty when a ledger is loaded again."""

    held: Held
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupSettled:
    """A group was trained, or dropped out of the queue: its bytes go, its id is remembered."""

    held: Held
    at: float
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class BatchChanged:
    """A batch was formed or went from one state to another."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A batch is no more; those of its groups that are still kept return to the queue."""

    ended: Ended


@dataclass(frozen=True, slots=True)
class RunChanged:
    """The run has other facts."""

    run: RunFacts


@dataclass(frozen=True, slots=True)
class EnvChanged:
    """An environment is new or has other facts."""

    env: EnvRecord


@dataclass(frozen=True, slots=True)
class TrainerChanged:
    """A trainer is new or has other facts."""

    trainer: TrainerFacts


@dataclass(frozen=True, slots=True)
class TrainerForgotten:
    """A trainer is no more."""

    trainer_id: str


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter went up."""

    name: str
    by: int = 1


Change: TypeAlias = (
    GroupAdded
    | GroupSettled
    | BatchChanged
    | BatchEnded
    | RunChanged
    | EnvChanged
    | TrainerChanged
    | TrainerForgotten
    | Counted
)

Result = TypeVar("Result")
Planned: TypeAlias = tuple[Result, list[Change]]
"""What an operation answers, and the changes that have to be durable before it does."""

"""Bodies and answers of the /v1 routes, as OpenAPI describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from atroposlib.wire.registrations import Name

Seconds = Annotated[float, Field(ge=1, le=86_400, description="Seconds.")]
Attempt = Annotated[int, Field(ge=1, lt=2**31, description="The lease's, from `Atropos-Attempt`.")]


class Body(BaseModel):
    """A request body; a field that the route does not know is a mistake."""

    model_config = ConfigDict(extra="forbid")


class AcceptedGroup(BaseModel):
    """What became of one group."""

    group_id: str
    status: Literal["new", "duplicate"]


class AcceptedGroups(BaseModel):
    """One entry a group, in the order of the post."""

    groups: list[AcceptedGroup]


class RegisteredEnv(BaseModel):
    """An environment's place in the run."""

    env_id: int
    wandb_name: str
    checkpoint_dir: str
    starting_step: int
    checkpoint_interval: int
    num_steps: int


class EnvFigures(BaseModel):
    """What an environment decides by how much to produce; sizes in groups of its own size."""

    current_step: int
    queue_size: int
    unallocated_fraction: float
    self_queue_size: int
    max_group_size: int
    env_weight: float


class RegisteredTrainer(BaseModel):
    """A trainer's place in the run; `replayed` batches come again before new ones."""

    trainer_id: str
    step: int
    replayed: int
    batch_size: int


class LeaseBody(Body):
    """What a trainer asks for."""

    trainer_id: Name
    n_sequences: Annotated[int, Field(ge=1, lt=2**31)] | None = Field(
        None, description="Exact number of sequences; the registered batch size when null."
    )
    wait_s: Annotated[float, Field(ge=0, le=30)] = Field(0.0, description="Seconds to wait for a batch.")
    lease_s: Seconds = 300.0


class HeartbeatBody(Body):
    """Renews a lease."""

    attempt: Attempt
    lease_s: Seconds = 300.0


class AckBody(Body):
    """The batch is trained."""

    attempt: Attempt | None = Field(None, description="The lease's; null is whichever is current.")


class NackBody(Body):
    """The trainer cannot use the batch now."""

    attempt: Attempt | None = Field(None, description="The lease's; null is whichever is current.")
    reason: Annotated[str, Field(max_length=1000)] = ""


class CommitBody(Body):
    """The batch, and all that the trainer acked before it, are in a durable checkpoint."""

    batch_id: Name


class RequeueBody(Body):
    """Which dead letter to queue again."""

    batch_id: Name | None = Field(None, description="All of them when null.")


class Expiry(BaseModel):
    """When the lease ends now, in unix seconds."""

    expires_at: float


class Step(BaseModel):
    """The step of the run."""

    step: int


class Committed(BaseModel):
    """Batches committed by this call."""

    committed: int


class Requeued(BaseModel):
    """Groups that are queued again."""

    requeued: int


class DeadBatch(BaseModel):
    """A batch that was delivered too often and never acked; `since` in unix seconds."""

    batch_id: str
    attempts: int
    since: float
    reason: str
    groups: list[str]


class DeadLetters(BaseModel):
    """Dead batches, oldest first."""

    dead_letters: list[DeadBatch]


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    where: str | None = None
    got: str | None = None
    expected: str | None = None
    fix: str | None = None


def problems(*statuses: int) -> dict[int | str, dict[str, object]]:
    """OpenAPI's description of error answers."""
    content = {"application/problem+json": {"schema": Problem.model_json_schema()}}
    return {status: {"description": "Problem", "content": content} for status in statuses}

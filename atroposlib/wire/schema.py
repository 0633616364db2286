"""The types of a posted group, field by field, as Atropos's routes take them.

Numbers given as "7" or 7.0 are read as Atropos reads them. Not a number and +Infinity are refused
wherever they stand; -Infinity is taken for a logprob, since Python clients write it for one.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from atroposlib.types import ABSENT_ID, IGNORED

Item = TypeVar("Item")

# One wrong item is told; without this a body of a million NaN makes a million errors.
Listed = Annotated[list[Item], Field(fail_fast=True)]

MAX_ID = 2**31
TokenId = Annotated[int, Field(ge=0, lt=MAX_ID)]
Mask = Annotated[int, Field(ge=IGNORED, lt=MAX_ID)]
ColumnId = Annotated[int, Field(ge=ABSENT_ID, lt=MAX_ID)]
ChunkId = Annotated[int, Field(ge=-1, lt=MAX_ID)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Logprob = Annotated[float, Field(lt=float("inf"))]
# What a database's integer holds.
Stored = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class ChatMessage(TypedDict):
    """A chat message; ``role`` and ``content`` must be there, other keys pass through."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]  # how pydantic configures a TypedDict

    role: Any
    content: Any


class Teacher(BaseModel):
    """One entry of ``teachers``; other keys pass through. Axes: :class:`atroposlib.types.TeacherEntry`."""

    model_config = ConfigDict(extra="allow")

    tokens: Listed[Listed[TokenId]] | None = None
    token_ids: Listed[Listed[Listed[ColumnId]]] | None = None
    logprobs: Listed[Listed[Listed[Logprob]]] | None = None
    student_chunk_id: Listed[Listed[ChunkId]] | None = None
    teacher_chunk_id: Listed[Listed[ChunkId]] | None = None


class FreeFields(BaseModel):
    """The fields of a group that are JSON in a frame too."""

    advantages: Listed[Listed[Finite]] | None = None
    messages: Listed[Listed[ChatMessage]] | None = None
    generation_params: dict[str, Any] | None = None
    overrides: Listed[dict[str, Any]] | None = None
    group_overrides: dict[str, Any] | None = None
    images: Any = None
    env_id: Stored | None = None
    group_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    policy_version: Stored | None = None


class ScoredData(FreeFields):
    """A group as it is posted; fields that are not named here are dropped, as in Atropos."""

    tokens: Listed[Listed[TokenId]]
    masks: Listed[Listed[Mask]]
    scores: Listed[Finite]
    ref_logprobs: Listed[Listed[Logprob]] | None = None
    inference_logprobs: Listed[Listed[Logprob]] | None = None
    distill_token_ids: Listed[Listed[Listed[ColumnId]]] | None = None
    distill_logprobs: Listed[Listed[Listed[Logprob]]] | None = None
    teachers: Listed[Teacher] | None = None


ATROPOS_KEYS = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "generation_params",
    "inference_logprobs",
    "overrides",
    "group_overrides",
    "images",
    "env_id",
    "distill_token_ids",
    "distill_logprobs",
)
"""The keys that every group of a batch carries, null where nothing was posted."""

RIDING_KEYS = ("group_id", "policy_version", "teachers")
"""Our keys; a group carries them out only when they were posted, so old trainers see Atropos's 14 keys."""

ARRAY_KEYS = frozenset(ScoredData.model_fields) - frozenset(FreeFields.model_fields)
"""The keys that a frame carries as arrays or in a place of their own (``scores``, ``teachers``)."""

CHUNK_IDS = ("student_chunk_id", "teacher_chunk_id")
"""The keys of a teacher's entry that pair its tokens with the student's: at the student's, at its own."""

TEACHER_ARRAY_KEYS = frozenset(Teacher.model_fields)
"""The keys of a teacher's entry that are arrays; its other keys are facts."""

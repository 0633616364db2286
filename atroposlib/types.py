"""The data containers, in the order in which data flows through them.

Axes: G sequences of a group, T student tokens, U teacher tokens, K columns, R scored rows.
Position p of any per-token array speaks of token p given the tokens before it, so row 0 says
nothing and is all absent. Logprobs are natural logarithms (nats).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    # numpy takes longer to import than an environment's --help may take to print.
    import numpy as np
    from numpy.typing import NDArray

IGNORED: int = -100
"""Value of ``masks`` at a token that is not trained; elsewhere ``masks`` repeats the token id."""

PROMPT_LOGPROB: float = 1.0
"""Value of ``inference_logprobs`` at a token that was not sampled."""

ABSENT_ID: int = -1
"""Token id of an absent column. The id decides, never the logprob."""

ABSENT_LOGPROB: float = -9999.0
"""What JSON carries beside an absent id, since JSON has no -inf."""

Item = Any
number = int | float


class Message(TypedDict, total=False):
    """One chat message; other keys pass through untouched."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Any
    reward: float | None


GameHistory = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a student server sampled for one prompt.

    Attributes:
        prompt_ids: Prompt token ids, as the server saw them.
        token_ids: Sampled token ids, one list a choice.
        logprobs: Logprob (nats) of each sampled id under the sampling model, same shape.
        texts: The server's text of each choice, for people and reward functions only.
        finish_reasons: ``stop``, ``length`` or ``abort``, one a choice.
    """

    prompt_ids: list[int]
    token_ids: list[list[int]]
    logprobs: list[list[float]]
    texts: list[str]
    finish_reasons: list[str]


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """A teacher's logprobs for the tokens of one sequence.

    Attributes:
        ids: int32 [R, K]; column 0 is the token that stands in the sequence, columns 1.. are the
            teacher's top-k without it in falling order; ``ABSENT_ID`` where there is none.
        logprobs: float32 [R, K] in nats; ``-inf`` beside an absent id.
        start: Position in the sequence of the first row; rows cover ``start .. start + R - 1``.
        model: Model id that the server answered for.
        tokenizer: Fingerprint of the teacher's tokenizer, empty where nobody told it.
        server: Server and version that answered (``vllm 0.32.0``), empty where it does not say.
        extra_logprobs: float32 [R, E] in nats of the ids that the caller named (``extra_ids``); NaN where it
            named none and where the server gave none. None when no ids were named.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    start: int
    model: str
    tokenizer: str = ""
    server: str = ""
    extra_logprobs: NDArray[np.float32] | None = None


class TeacherEntry(TypedDict, total=False):
    """One teacher's targets for a group, as they travel on the wire."""

    name: str
    weight: float
    model: str
    tokenizer_fingerprint: str
    same_tokenizer: bool
    temperature: float
    tokens: list[list[int]]
    token_ids: list[list[list[int]]]
    logprobs: list[list[list[float]]]
    student_chunk_id: list[list[int]]
    teacher_chunk_id: list[list[int]]


class ScoredDataGroup(TypedDict, total=False):
    """A group of G scored rollouts of one item; what environments post and trainers pull.

    ``tokens`` [G][T], ``masks`` [G][T], ``scores`` [G] are required. ``distill_token_ids`` and
    ``distill_logprobs`` are [G][T][K] (see :class:`TeacherScores` for the columns).
    """

    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None
    ref_logprobs: list[list[float]] | None
    messages: list[list[Message]] | None
    generation_params: dict[str, Any] | None
    inference_logprobs: list[list[float]] | None
    overrides: list[dict[str, Any]] | None
    group_overrides: dict[str, Any] | None
    images: Any | None
    env_id: int | None
    distill_token_ids: list[list[list[int]]] | None
    distill_logprobs: list[list[list[float]]] | None
    group_id: str | None
    policy_version: int | None
    teachers: list[TeacherEntry] | None


@dataclass(frozen=True, slots=True)
class Targets:
    """One teacher's targets for a group: rows of the scored positions only.

    Attributes:
        starts: int32 [G]; position in its sequence of each sequence's first row.
        counts: int32 [G]; rows of each sequence, 0 where nothing was scored; their sum is R.
        ids: int32 [R, K]; columns as in :class:`TeacherScores`, ``ABSENT_ID`` where there is none.
        logprobs: float16 or float32 [R, K] in nats; ``-inf`` beside an absent id.
    """

    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TeacherTargets:
    """One entry of ``teachers`` as arrays.

    Attributes:
        facts: ``name``, ``weight``, ``model``, ``tokenizer_fingerprint``, ``same_tokenizer``, ``temperature``
            and whatever else the entry said, as JSON values.
        tokens: G arrays int32 [U] of the teacher's own ids; None when they are the student's.
        targets: Rows at the teacher's positions, None when it scored nothing.
        student_chunk_id: G arrays int32 [T], -1 in no chunk; None with one tokenizer.
        teacher_chunk_id: G arrays int32 [U], -1 in no chunk; None with one tokenizer.
    """

    facts: dict[str, Any]
    tokens: list[NDArray[np.int32]] | None = None
    targets: Targets | None = None
    student_chunk_id: list[NDArray[np.int32]] | None = None
    teacher_chunk_id: list[NDArray[np.int32]] | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A :class:`ScoredDataGroup` as arrays: what a frame decodes to and what a trainer collates.

    Attributes:
        tokens: G arrays int32 [T].
        masks: G arrays int32 [T]; ``IGNORED`` where the token is not trained.
        scores: One float a sequence.
        advantages, ref_logprobs, inference_logprobs: G arrays float32 [T], or None.
        targets: What ``distill_token_ids`` and ``distill_logprobs`` say, or None. Where they repeat the first
            same-tokenizer teacher, this is that teacher's ``targets`` object.
        teachers: One entry a teacher.
        rest: The other keys of the group as JSON values (``messages``, ``overrides``, ``env_id``,
            ``group_id``, ``policy_version``, ...); keys that were null are missing.
    """

    tokens: list[NDArray[np.int32]]
    masks: list[NDArray[np.int32]]
    scores: list[float]
    advantages: list[NDArray[np.float32]] | None = None
    ref_logprobs: list[NDArray[np.float32]] | None = None
    inference_logprobs: list[NDArray[np.float32]] | None = None
    targets: Targets | None = None
    teachers: list[TeacherTargets] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)


class ScoredDataItem(TypedDict, total=False):
    """One scored rollout; ``collate`` of G of them is a :class:`ScoredDataGroup`."""

    tokens: list[int]
    masks: list[int]
    scores: float
    advantages: list[float] | None
    ref_logprobs: list[float] | None
    messages: list[Message] | None
    generation_params: dict[str, Any] | None
    inference_logprobs: list[float] | None
    overrides: dict[str, Any] | None
    group_overrides: dict[str, Any] | None
    images: Any | None
    env_id: int | None
    distill_token_ids: list[list[int]] | None
    distill_logprobs: list[list[float]] | None

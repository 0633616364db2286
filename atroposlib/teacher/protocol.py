"""What every way of asking a teacher takes and gives: the question, the answer's kind, what a server can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import aiohttp
    import numpy as np
    from numpy.typing import NDArray

    from atroposlib.teacher.transport import Peer
    from atroposlib.types import TeacherScores

LogprobDtype = Literal["float16", "float32"]


@dataclass(frozen=True, slots=True)
class Question:
    """One sequence to score.

    Attributes:
        ids: int32 [T], in the teacher's vocabulary.
        k: Top-k tokens at each position; 0 for the selected token alone.
        start: First position to score, 1 .. T - 1 (nothing precedes position 0). R = T - start rows.
        extra_ids: int32 [R, E], ids that the caller names at each row; ``ABSENT_ID`` where it names none.
        dtype: Type in which a binary route sends the top-k's logprobs; the selected token's is float32.
    """

    ids: NDArray[np.int32]
    k: int
    start: int = 1
    extra_ids: NDArray[np.int32] | None = None
    dtype: LogprobDtype = "float32"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one server can, as probing it showed.

    Attributes:
        route: Name of the way it is asked: ``plugin``, ``sglang``, ``generate``, ``completions``, ``echo``.
        server: Server and version, as ``vllm 0.32.0``; empty where it does not say.
        model: Model id that it serves.
        max_model_len: Longest prompt and completion together, in tokens; None where it does not say.
        max_k: Largest k it answers, None where that is not known.
        extra_ids: Whether it scores ids that the caller names.
        start: Whether it leaves out rows before the start.
        binary: Whether its answer is binary.
    """

    route: str
    server: str
    model: str
    max_model_len: int | None = None
    max_k: int | None = None
    extra_ids: bool = False
    start: bool = False
    binary: bool = False


class Route(Protocol):
    """One way of asking a server. Stateless; each of its calls is one try."""

    name: str

    async def probe(self, session: aiohttp.ClientSession, peer: Peer) -> Capabilities | None:
        """What the server can over this route, None when it does not speak it.

        Raises:
            Passing: The failure may pass.
            TeacherError: The server refuses for a reason that is not the route (a key, a model name).
        """

    async def score(
        self, session: aiohttp.ClientSession, peer: Peer, question: Question, capabilities: Capabilities
    ) -> TeacherScores:
        """The checked answer: R rows from ``question.start``, K = k + 1 columns.

        Raises:
            Passing: The failure may pass.
            TeacherError: Refused, or an answer that is not what was asked for; no value of it is used.
        """


class Scorer(Protocol):
    """Whoever scores sequences: one teacher, however many servers and caches stand behind it."""

    async def score(
        self,
        ids: Sequence[int],
        k: int,
        start: int = 1,
        extra_ids: NDArray[np.int32] | None = None,
    ) -> TeacherScores:
        """Scores of positions ``start`` .. T - 1 of the T tokens ``ids``. Raises TeacherError."""

"""What flows through the server: options of a request, its sequences, and their scores.

Axes: R scored prompt positions, K columns (the selected token, then the top-k). Logprobs are natural
logarithms (nats) of the model's own distribution, before temperature, top_p and the like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from atroposlib.modelserver.text import TextStream

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How a request wants its tokens sampled, scored and ended; checked, with vLLM's defaults filled in.

    Two fields are no options of vLLM's: ``prompt_logprobs`` are of the positions from ``scored_from`` on, and
    ``named_ids`` int32 [R, E] are ids to be scored at each of them (negative for none).
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    scored_from: int = 1
    named_ids: NDArray[np.int32] | None = field(default=None, compare=False)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken in place of a sampled one."""
        return self.temperature < 1e-5


@dataclass(frozen=True, slots=True)
class EndTokens:
    """Ids that end a sequence: the tokenizer's own, and others that the model's generation config names."""

    own: int | None
    others: frozenset[int] = frozenset()

    @property
    def all(self) -> frozenset[int]:
        """Every id that ends a sequence."""
        return self.others if self.own is None else self.others | {self.own}


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores at one position: ``ids`` and ``logprobs`` [K], column 0 the selected token with its ``rank``."""

    ids: list[int]
    logprobs: list[float]
    rank: int


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores of R prompt tokens, from ``scored_from`` to the last, given those before them.

    Attributes:
        ids: int64 [R, K]; column 0 is the prompt's token, columns 1.. the top-k in falling order.
        logprobs: float32 [R, K], in nats.
        ranks: int64 [R]; how many ids of the vocabulary are at least as likely as the prompt's token.
        named: float32 [R, E], logprobs of ``named_ids``; NaN where there is none.
    """

    ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int64]
    named: NDArray[np.float32]


@dataclass(eq=False, slots=True)
class Sequence:
    """One completion being generated: choice ``index`` of ``job``."""

    job: Job
    index: int
    generator: torch.Generator
    stream: TextStream
    ids: list[int] = field(default_factory=list)
    scores: list[TokenScores] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        """Whether no further token belongs to it, for whatever reason."""
        return self.finish_reason is not None or self.job.cancelled or self.job.error is not None


@dataclass(eq=False, slots=True)
class Job:
    """One prompt of a request with its ``options.n`` sequences.

    ``done`` is called once, on the worker's thread, when every sequence has finished or ``error`` is set.
    """

    prompt_ids: list[int]
    options: SamplingOptions
    done: Callable[[Job], None]
    sequences: list[Sequence] = field(default_factory=list)
    prompt_scores: PromptScores | None = None
    cancelled: bool = False
    error: Exception | None = None

    @property
    def finished(self) -> bool:
        """Whether nothing of it is left to do."""
        return all(sequence.finished for sequence in self.sequences)

"""Questions with their right answers, from full distributions of a made-up model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atroposlib.teacher.protocol import LogprobDtype, Question
from atroposlib.types import ABSENT_ID, TeacherScores
from tests.support.vllm_render import fake_logprobs


def columns(logprobs: NDArray[np.float32], token: int, k: int) -> list[tuple[int, float]]:
    """(id, logprob) of the token that stands there, then of the top-k without it, absent to the end."""
    top = [int(i) for i in np.argsort(-logprobs, kind="stable")[:k] if i != token]
    present = [(i, float(logprobs[i])) for i in [token, *top]]
    return present + [(ABSENT_ID, -np.inf)] * (k + 1 - len(present))


def answer(question: Question, vocabulary: int = 50, model: str = "fake") -> TeacherScores:
    """The right scores of a question, one position after the other."""
    table = fake_logprobs(question.ids.tolist(), vocabulary)
    positions = range(question.start, len(question.ids))
    rows = [columns(table[p], int(question.ids[p]), question.k) for p in positions]
    extra = None
    if question.extra_ids is not None:
        named = [
            [float(table[p][i]) if i >= 0 else np.nan for i in row]
            for p, row in zip(positions, question.extra_ids, strict=True)
        ]
        extra = np.array(named, np.float32)
    return TeacherScores(
        np.array([[i for i, _ in row] for row in rows], np.int32),
        np.array([[value for _, value in row] for row in rows], np.float32),
        question.start,
        model,
        server="fake 1",
        extra_logprobs=extra,
    )


def question(
    length: int,
    k: int,
    start: int = 1,
    *,
    extra: int = 0,
    dtype: LogprobDtype = "float32",
    seed: int = 0,
    vocabulary: int = 50,
) -> Question:
    """A question of random ids, with ``extra`` named ids a row, every fifth of them absent."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(vocabulary, size=length, dtype=np.int32)
    named = None
    if extra:
        named = rng.integers(vocabulary, size=(length - start, extra), dtype=np.int32)
        named[rng.random(named.shape) < 0.2] = ABSENT_ID
    return Question(ids, k, start, named, dtype)

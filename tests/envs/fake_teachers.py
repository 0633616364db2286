"""Teachers without servers: each a fixed random model over a few tokens, whose truth tests can ask for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.envs.teacher_set import TeacherSet
from atroposlib.teacher.protocol import Capabilities
from atroposlib.teacher.stats import TeacherStats
from atroposlib.types import TeacherScores

VOCABULARY = 300


def truth(name: str, before: Sequence[int]) -> NDArray[np.float32]:
    """Logprobs [V] of what follows the tokens ``before`` under the teacher of this name."""
    seed = zlib.crc32(f"{name} {list(before)}".encode())
    logits = np.random.default_rng(seed).normal(0, 3, VOCABULARY)
    return (logits - np.log(np.exp(logits).sum())).astype(np.float32)


def row(name: str, ids: Sequence[int], position: int, k: int) -> tuple[list[int], list[float]]:
    """Ids and logprobs [k + 1] at a position, by definition: the token itself, then the top-k without it."""
    logprobs = truth(name, ids[:position])
    top = [int(token) for token in np.argsort(-logprobs)[:k] if token != ids[position]]
    columns = [ids[position], *top]
    absent = k + 1 - len(columns)
    return columns + [-1] * absent, [float(logprobs[token]) for token in columns] + [-np.inf] * absent


class FakeTeacher:
    """Scores by :func:`truth`; ``trouble`` may raise for some sequences.

    Attributes:
        asked: Ids, k and start of every question.
    """

    def __init__(
        self, name: str, trouble: Callable[[Sequence[int]], None] | None = None, *, takes_ids: bool = True
    ) -> None:
        self.name = name
        self.stats = TeacherStats(name)
        self.capabilities: list[Capabilities] = []
        self.asked: list[tuple[list[int], int, int]] = []
        self._trouble = trouble
        self._takes_ids = takes_ids

    async def score(
        self, ids: Sequence[int], k: int, start: int = 1, extra_ids: NDArray[np.int32] | None = None
    ) -> TeacherScores:
        self.asked.append((list(ids), k, start))
        if self._trouble is not None:
            self._trouble(ids)
        rows = [row(self.name, ids, position, k) for position in range(start, len(ids))]
        extra = None
        if extra_ids is not None and self._takes_ids:
            tables = [truth(self.name, ids[:position]) for position in range(start, len(ids))]
            given = [
                [table[one] if one >= 0 else np.nan for one in named]
                for table, named in zip(tables, extra_ids, strict=True)
            ]
            extra = np.array(given, np.float32).reshape(len(rows), -1)
        return TeacherScores(
            ids=np.array([ids for ids, _ in rows], np.int32).reshape(-1, k + 1),
            logprobs=np.array([logprobs for _, logprobs in rows], np.float32).reshape(-1, k + 1),
            start=start,
            model=f"model-of-{self.name}",
            extra_logprobs=extra,
        )

    async def close(self) -> None:
        return None


def install(env: Any, teachers: Mapping[str, FakeTeacher], **configs: TeacherConfig) -> None:
    """Put fake teachers in the place of an environment's own."""
    settings = {
        name: configs.get(name)
        or TeacherConfig(base_url="http://t", tokenizer_name=env.tokenizer.name_or_path)
        for name in teachers
    }
    fakes: Any = dict(teachers)
    env._teacher_set = TeacherSet(settings, fakes, env.teacher_server, None, "print")
    env.teachers = fakes


def server_of(tokenizer_dir: Path) -> APIServerConfig:
    """A server that nobody asks, with the student's tokenizer."""
    return APIServerConfig(model_name="t", tokenizer_name=str(tokenizer_dir), base_url="http://t")

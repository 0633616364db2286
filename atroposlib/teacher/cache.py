"""Teacher scores that were asked before: in memory up to so many bytes, and in a file without bound."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import WireError
from atroposlib.teacher import canary
from atroposlib.teacher.cache_file import CacheFile
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.scores import cut
from atroposlib.types import TeacherScores

logger = logging.getLogger(__name__)

T = TypeVar("T")


def key_of(question: Question, fingerprint: str, template: str = "") -> bytes:
    """What the scores of ``question`` are found under: everything they depend on, but for the start.

    Args:
        question: The question.
        fingerprint: The teacher, in its present generation.
        template: By what the context before the student's tokens was rendered, if any.
    """
    digest = hashlib.sha256()
    extra = question.extra_ids
    shape = "" if extra is None else str(extra.shape)
    for part in (fingerprint, template, question.dtype, str(question.k), shape):
        text = part.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    if extra is not None:
        digest.update(np.ascontiguousarray(extra, dtype="<i4").tobytes())
    digest.update(np.ascontiguousarray(question.ids, dtype="<i4").tobytes())
    return digest.digest()


class ScoreCache:
    """Scores by :func:`key_of`; may serve several teachers. Its owner closes it.

    Args:
        max_bytes: Bytes of arrays kept in memory, the least recently used ones going first; 0 keeps none.
        path: SQLite file that keeps them over restarts; grows without bound, and may be deleted at any time
            between runs. Several processes may use it at once. None for none.

    Attributes:
        unreadable: Rows of the file that were damaged, and so were not there.
        failures: Times the file could not be read or written; scores are asked anew.

    Raises:
        UsageError: usage.file when ``path`` cannot be opened or is something else.
    """

    def __init__(self, max_bytes: int, path: str | Path | None = None) -> None:
        self.unreadable = 0
        self.failures = 0
        self._max_bytes = max_bytes
        self._bytes = 0
        self._memory: OrderedDict[bytes, TeacherScores] = OrderedDict()
        self._canaries: dict[str, list[NDArray[np.float32]]] = {}
        self._file = None if path is None else CacheFile(Path(path))
        # One thread: the connection is never used by two at once, and writes keep their order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="score-cache")

    async def get(self, key: bytes, start: int) -> TeacherScores | None:
        """The scores under ``key`` from position ``start`` on, None where these rows were not kept."""
        kept = self._memory.get(key)
        if kept is not None:
            self._memory.move_to_end(key)
        else:
            kept = await self._in_file(lambda file: file.get(key))
            if kept is not None:
                self._keep(key, kept)
        return None if kept is None or kept.start > start else cut(kept, start)

    async def put(self, key: bytes, scores: TeacherScores) -> None:
        """Keep ``scores``, unless some are kept from an earlier position on; nobody may write into them."""
        kept = self._memory.get(key)
        if kept is not None and kept.start < scores.start:
            return
        self._keep(key, scores)
        await self._in_file(lambda file: file.put(key, scores))

    async def generation(self, base: str, logprobs: NDArray[np.float32]) -> int:
        """Which of the models known as ``base`` scores the canary so, from 0; a new one where none does.

        See :mod:`atroposlib.teacher.canary`. In a file this is remembered, so that a teacher that was changed
        between two runs is never answered for from the scores of the old one.
        """
        found = await self._in_file(lambda file: file.generation(base, logprobs, canary.same))
        if found is not None:
            return found
        known = self._canaries.setdefault(base, [])
        for number, one in enumerate(known):
            if canary.same(one, logprobs):
                return number
        known.append(logprobs)
        return len(known) - 1

    async def close(self) -> None:
        """Let go of the file, when what is being written is written."""
        await self._in_file(CacheFile.close)
        self._thread.shutdown()

    def _keep(self, key: bytes, scores: TeacherScores) -> None:
        old = self._memory.pop(key, None)
        self._bytes += _size(scores) - (0 if old is None else _size(old))
        self._memory[key] = scores
        while self._bytes > self._max_bytes:
            _, gone = self._memory.popitem(last=False)
            self._bytes -= _size(gone)

    async def _in_file(self, work: Callable[[CacheFile], T]) -> T | None:
        """``work`` of the file in its thread; None where there is no file, or (counted) it fails."""
        if self._file is None:
            return None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._file)
        except WireError as error:
            self.unreadable += 1
            logger.debug("a row of the score cache cannot be read: %s", error)
        except sqlite3.Error as error:
            self.failures += 1
            if self.failures == 1:
                logger.warning("the score cache's file fails, scores are asked anew: %s", error)
        return None


def _size(scores: TeacherScores) -> int:
    extra = 0 if scores.extra_logprobs is None else scores.extra_logprobs.nbytes
    return scores.ids.nbytes + scores.logprobs.nbytes + extra

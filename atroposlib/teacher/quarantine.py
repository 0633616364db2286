"""Sequences that broke servers: one that killed two engines would kill the third."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import TeacherError
from atroposlib.teacher.persistence import BROKEN_LIMIT

REMEMBERED = 10_000
"""Sequences kept in mind; the oldest ones are forgotten first."""


class Quarantine:
    """Counts how often each sequence was in work when its server broke, until it is once answered.

    Whatever was in work beside the culprit is blamed as well. So what is suspected is asked alone the next
    time: then only the culprit is blamed twice, and the others clear themselves.
    """

    def __init__(self) -> None:
        self._blames: OrderedDict[bytes, int] = OrderedDict()

    def blame(self, ids: NDArray[np.int32]) -> None:
        """A server broke on ``ids`` [T]."""
        digest = _digest(ids)
        self._blames[digest] = self._blames.pop(digest, 0) + 1
        if len(self._blames) > REMEMBERED:
            self._blames.popitem(last=False)

    def clear(self, ids: NDArray[np.int32]) -> None:
        """A server answered ``ids`` [T]."""
        if self._blames:
            self._blames.pop(_digest(ids), None)

    def suspects(self, ids: NDArray[np.int32]) -> bool:
        """Whether a server broke on ``ids`` [T], and none has answered them since."""
        return bool(self._blames) and _digest(ids) in self._blames

    def check(self, ids: NDArray[np.int32], where: str) -> None:
        """Raises TeacherError (teacher.quarantined) when ``ids`` [T] broke too many servers."""
        if self._blames and self._blames.get(_digest(ids), 0) >= BROKEN_LIMIT:
            raise TeacherError(
                "the sequence is not sent again: it broke a server each time",
                code="teacher.quarantined",
                where=where,
                got=f"{self._blames[_digest(ids)]} broken requests of {len(ids)} tokens",
                fix="see the server's log; a smaller --max-num-batched-tokens saves its memory",
            )


def _digest(ids: NDArray[np.int32]) -> bytes:
    return hashlib.blake2b(ids.tobytes(), digest_size=16).digest()

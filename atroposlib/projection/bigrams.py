"""Pairs of bytes that no token holds, so that a cut between them is a token's end whatever the text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.table import Vocabulary


def safe_bigrams(*vocabularies: Vocabulary) -> npt.NDArray[np.bool_]:
    """bool [256, 256]: whether the row's byte followed by the column's stands within no token of any.

    Markers have no bytes, so a text that is spelled like one is seen as its tokens are.
    """
    safe = np.ones((256, 256), dtype=np.bool_)
    for vocabulary in vocabularies:
        within = np.ones(len(vocabulary.blob), dtype=np.bool_)
        within[vocabulary.offsets[:-1][np.diff(vocabulary.offsets) > 0]] = False
        second = np.flatnonzero(within)
        safe[vocabulary.blob[second - 1], vocabulary.blob[second]] = False
    return safe

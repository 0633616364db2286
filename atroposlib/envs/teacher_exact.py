"""Rows of a teacher with another tokenizer in the student's ids, where one id of each says the same.

For trainers that know only ``distill_*``. What no id of the student's says exactly is absent, never guessed.

Axes: T tokens of the student's sequence, V_t ids of the teacher's vocabulary, K columns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.align.markers import BYTES, marker_symbols
from atroposlib.align.tables.table import TEXT, Vocabulary
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.envs.teacher_views import Aligned
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB
from atroposlib.wire.targets import repeated


def exact_ids(student: Any, teacher: Any) -> NDArray[np.int32]:
    """int32 [V_t]: the one student id that says the same as each teacher id; ``ABSENT_ID`` where none does.

    Text is compared by its bytes; a text that several student ids stand for has no one id. Markers pair by
    what they do, as in an alignment.

    Args:
        student: Whatever :func:`atroposlib.align.vocabulary.vocabulary_of` takes.
        teacher: Likewise.
    """
    ours, theirs = vocabulary_of(student), vocabulary_of(teacher)
    texts = _texts(ours)
    counts = Counter(texts.values())
    by_text = {text: number for number, text in texts.items() if counts[text] == 1}
    found = np.full(len(theirs), ABSENT_ID, np.int32)
    for number, text in _texts(theirs).items():
        found[number] = by_text.get(text, ABSENT_ID)
    symbols = marker_symbols(ours, theirs)
    markers = Counter(symbols[0].values())
    by_symbol = {symbol: number for number, symbol in symbols[0].items() if markers[symbol] == 1}
    for number, symbol in symbols[1].items():
        found[number] = by_symbol.get(symbol, ABSENT_ID) if symbol >= BYTES else ABSENT_ID
    return found


def _texts(vocabulary: Vocabulary) -> dict[int, bytes]:
    blob, offsets = vocabulary.blob.tobytes(), vocabulary.offsets.tolist()
    spans = itertools.pairwise(offsets)
    return {
        number: blob[begin:end]
        for number, ((begin, end), kind) in enumerate(zip(spans, vocabulary.kinds.tolist(), strict=True))
        if kind == TEXT
    }


def projected(
    said: Aligned, student_ids: NDArray[np.int32], exact: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and logprobs (nats) [T, K] at the student's positions, in the student's ids.

    A position has a row when its chunk is one token on each side and the teacher's says exactly what the
    student's says. Columns whose id the student lacks are absent; of two that mean one student id the first,
    which is the likelier or the one that stands there, is kept.

    Args:
        said: What the teacher said of the sequence.
        student_ids: int32 [T].
        exact: :func:`exact_ids`.
    """
    ours, theirs = _alone(said.student_chunk_id), _alone(said.teacher_chunk_id)
    _, here, there = np.intersect1d(
        said.student_chunk_id[ours], said.teacher_chunk_id[theirs], return_indices=True
    )
    positions, rows = ours[here], theirs[there]
    ids, logprobs = said.rows[0][rows], said.rows[1][rows]
    known = (ids >= 0) & (ids < len(exact))
    mapped = np.where(known, exact[np.where(known, ids, 0)], ABSENT_ID).astype(np.int32)
    mapped[repeated(mapped)] = ABSENT_ID
    stands = mapped[:, 0] == student_ids[positions]
    token_ids = np.full((len(student_ids), ids.shape[1]), ABSENT_ID, np.int32)
    values = np.full(token_ids.shape, ABSENT_LOGPROB, np.float32)
    token_ids[positions[stands]] = mapped[stands]
    values[positions[stands]] = np.where(mapped == ABSENT_ID, ABSENT_LOGPROB, logprobs)[stands]
    return token_ids, values


def _alone(chunk_ids: NDArray[np.int32]) -> NDArray[np.intp]:
    """Positions of tokens that are the only one of their chunk on their side."""
    inside = np.flatnonzero(chunk_ids >= 0)
    counts = np.bincount(chunk_ids[inside]) if len(inside) else np.zeros(0, np.intp)
    alone: NDArray[np.intp] = inside[counts[chunk_ids[inside]] == 1]
    return alone

"""What the losses across tokenizers read of a micro-batch, as arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from atroposlib.collate.across.pair import TokenizerPair
from atroposlib.projection.splits import NO_ID

NO_ROW = -1

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ChunkArrays:
    """N rows of the student's logits, and what one teacher says of them.

    A *cut* is a boundary of tokens on both sides that is one whatever the text around it; the *safe chunk*
    that begins there reaches to the next. At a cut the teacher's probabilities are those given that the next
    byte is one that makes the cut safe (the class), estimated from what was shipped. K cells a row: common
    outcomes of both vocabularies. M minimal chunks, between any two common boundaries.

    Attributes:
        pair: The two vocabularies.
        positions: int64 [N], rising: the logits at this position predict ``tokens``.
        tokens: int64 [N]. The student's token that stands behind the position.
        before: int64 [N, 2]. The byte before the cut on both sides, which decides the class; 256 for none.
        cut: bool [N]. Rows that the quotient KL is taken at. The other rows are inside of a chunk, or the
            end of one.
        cells: int64 [N, K]. Components that the teacher named; -1 where there is none.
        cell_mass: float64 [N, K]. The teacher's probability of those tokens of each that it named.
        cell_open: bool [N, K]. Whether the component has tokens that the teacher did not name.
        tail_mass: float64 [N]. Probability of named tokens that are in no component.
        observed_cell: int64 [N]. Cell that the teacher's own token at the cut is in; K for the tail.
        sampled_cell: bool [N]. Whether the observed cell is there only because its token stands in the text:
            none of the teacher's top-k is in it.
        same_cell: bool [N]. Whether the student's token is in the observed cell too.
        boundary: float64 [N]. Log probability of the class to the teacher, nats.
        chunk_start: int64 [N]. Row of the cut that this token's safe chunk begins at; -1 where the chunk
            cannot be compared.
        chunk_end: int64 [N]. At such a cut, the row that stands behind the chunk; else -1.
        path: float64 [N]. At such a cut, log probability to the teacher of the chunk and the class behind it.
        minimal_chunk: int64 [N]. Minimal chunk of this token; -1 for none.
        minimal_surprisal: float64 [M]. The teacher's, nats.
        counts: What there is and what of it is not used, by reason.
    """

    pair: TokenizerPair
    positions: Ints
    tokens: Ints
    before: Ints
    cut: Flags
    cells: Ints
    cell_mass: Floats
    cell_open: Flags
    tail_mass: Floats
    observed_cell: Ints
    sampled_cell: Flags
    same_cell: Flags
    boundary: Floats
    chunk_start: Ints
    chunk_end: Ints
    path: Floats
    minimal_chunk: Ints
    minimal_surprisal: Floats
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def cuts(self) -> int:
        """What a quotient KL divides by, in this share of the step."""
        return int(self.cut.sum())

    @property
    def safe_tokens(self) -> int:
        """Student tokens in comparable safe chunks: what the debiased chunk likelihood divides by."""
        return int((self.chunk_start != NO_ROW).sum())

    @property
    def minimal_tokens(self) -> int:
        """Student tokens in minimal chunks: what the chunk likelihood without debias divides by."""
        return int((self.minimal_chunk != NO_ROW).sum())


def joined(parts: Sequence[tuple[ChunkArrays, int]]) -> ChunkArrays:
    """The arrays of a micro-batch.

    Args:
        parts: At least one; of each sequence its arrays and what is added to its positions, such as its row
            times the padded length.
    """
    columns = max(arrays.cells.shape[1] for arrays, _ in parts)
    pieces = []
    rows = chunks = 0
    for arrays, offset in parts:
        pieces.append(_moved(arrays, offset, rows, chunks, columns))
        rows += len(arrays.positions)
        chunks += len(arrays.minimal_surprisal)
    values = {
        one.name: np.concatenate([piece[one.name] for piece in pieces])
        for one in fields(ChunkArrays)
        if one.name not in ("pair", "counts")
    }
    counts = sum((arrays.counts for arrays, _ in parts), Counter[str]())
    return ChunkArrays(pair=parts[0][0].pair, counts=counts, **values)


def _moved(
    arrays: ChunkArrays, offset: int, rows: int, chunks: int, columns: int
) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays by name, ``columns`` wide, as they stand behind other sequences' rows and chunks."""
    found = {one.name: getattr(arrays, one.name) for one in fields(ChunkArrays)}
    missing = columns - arrays.cells.shape[1]
    for name, absent in (("cells", NO_ID), ("cell_mass", 0.0), ("cell_open", False)):
        found[name] = np.pad(found[name], ((0, 0), (0, missing)), constant_values=absent)
    tail = arrays.observed_cell == arrays.cells.shape[1]
    found["observed_cell"] = np.where(tail, columns, arrays.observed_cell)
    found["positions"] = arrays.positions + offset
    for name, by in (("chunk_start", rows), ("chunk_end", rows), ("minimal_chunk", chunks)):
        found[name] = np.where(found[name] == NO_ROW, NO_ROW, found[name] + by)
    return found

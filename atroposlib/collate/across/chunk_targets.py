"""Makes of one sequence and a teacher's rows what the losses across tokenizers read, and counts the rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from atroposlib.collate.across.chunk_arrays import NO_ROW, ChunkArrays, Flags, Floats, Ints
from atroposlib.collate.across.cuts import Chunks, chunks_with_cuts
from atroposlib.collate.across.pair import MARKER, TokenizerPair
from atroposlib.collate.across.teacher_cells import same_cells, teacher_cells
from atroposlib.projection.splits import NO_ID
from atroposlib.types import ABSENT_ID, ABSENT_LOGPROB
from atroposlib.wire.targets import MOST_MASS, hostile_values, repeated

_Value = TypeVar("_Value", bound=np.generic)

LONGEST_CHUNK = 32
"""Student tokens of a safe chunk above which its path is not compared: it is one number for all of them."""


class TeacherRows(NamedTuple):
    """What a teacher said: R rows of K columns, of which column 0 is the token that stands there.

    Attributes:
        start: Teacher token that the first row speaks of.
        ids: Integers [R, K], ``ABSENT_ID`` where there is none.
        logprobs: float [R, K], nats.
    """

    start: int
    ids: npt.NDArray[np.integer]
    logprobs: npt.NDArray[np.floating]


def chunk_arrays(
    pair: TokenizerPair,
    student_ids: npt.NDArray[np.integer],
    trained: Flags,
    teacher_ids: npt.NDArray[np.integer],
    targets: TeacherRows,
    student_chunk_id: npt.NDArray[np.integer],
    teacher_chunk_id: npt.NDArray[np.integer],
) -> ChunkArrays:
    """The rows of one sequence. T student tokens, U teacher tokens.

    Args:
        pair: The two vocabularies.
        student_ids: Integers [T].
        trained: bool [T].
        teacher_ids: Integers [U].
        targets: The teacher's rows.
        student_chunk_id: Integers [T], -1 in no chunk.
        teacher_chunk_id: Integers [U], likewise.

    Returns:
        The arrays. ``counts`` has ``trained_tokens``, of which ``minimal_tokens`` are in chunks that can be
        compared and the others are ``no_chunk``, ``partly_trained`` (their chunk has tokens that are not) or
        ``not_scored``; ``cuts``, and cuts of trained tokens that are left out: ``cut_not_scored``,
        ``cut_no_topk``, ``cut_one_space``; of the cuts ``unsafe_starts``, and those without a comparable
        chunk: ``open_end``, ``chunk_untrained``, ``chunk_too_long``; ``other_cell`` where the path cannot
        refine the observed cell; ``duplicate_columns`` and ``not_probabilities`` (rows) of the teacher.
    """
    trained = trained.copy()
    # Nothing comes before token 0, so nothing predicts it.
    trained[:1] = False
    chunks = chunks_with_cuts(pair, student_ids, teacher_ids, student_chunk_id, teacher_chunk_id)
    counts: Counter[str] = Counter()
    scores = _scores(targets, teacher_ids, counts)
    plan = _plan(chunks, trained, scores, student_chunk_id, counts)
    return _arrays(pair, student_ids, chunks, plan, scores, counts)


@dataclass(frozen=True, slots=True)
class _Scores:
    """What the teacher's rows say. R rows, K columns.

    Attributes:
        scored: bool [U]. Which teacher tokens have a usable row.
        logprob: float64 [U], nats; 0 where there is none.
        row: int64 [U], likewise.
        ids: int64 [R, K], each once in a row; ``ABSENT_ID`` where there is none.
        probabilities: float64 [R, K], 0 beside an absent id.
    """

    scored: Flags
    logprob: Floats
    row: Ints
    ids: Ints
    probabilities: Floats


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is read of C chunks.

    Attributes:
        minimal: bool [C]. Chunks that can be compared.
        cut: bool [C]. Those that begin at a cut with cells.
        compared: bool [C]. Those of them whose safe chunk can be compared.
        end: bool [C]. Those that stand behind such a safe chunk.
        next_cut: int64 [C]. The next chunk that begins at a cut; C for none.
    """

    minimal: Flags
    cut: Flags
    compared: Flags
    end: Flags
    next_cut: Ints


@hostile_values()
def _scores(targets: TeacherRows, teacher_ids: npt.NDArray[np.integer], counts: Counter[str]) -> _Scores:
    logprobs = targets.logprobs.astype(np.float64)
    ids = np.where(logprobs > ABSENT_LOGPROB, targets.ids, ABSENT_ID).astype(np.int64)
    twice = repeated(ids)
    counts["duplicate_columns"] += int(twice.sum())
    ids[twice] = ABSENT_ID
    probabilities = np.where(ids != ABSENT_ID, np.exp(logprobs), 0.0)
    # NaN compares false, so a row with one is not sound either.
    sound = probabilities.sum(1) <= MOST_MASS
    counts["not_probabilities"] += int((~sound).sum())
    row = np.arange(len(teacher_ids)) - targets.start
    here = (row >= 0) & (row < len(ids))
    row = np.where(here, row, 0)
    if not len(ids):
        return _Scores(here, np.zeros(len(here)), row, ids, probabilities)
    scored = here & sound[row] & (ids[row, 0] == teacher_ids) & (probabilities[row, 0] > 0)
    return _Scores(scored, np.where(scored, logprobs[row, 0], 0.0), row, ids, probabilities)


def _plan(
    chunks: Chunks,
    trained: Flags,
    scores: _Scores,
    student_chunk_id: npt.NDArray[np.integer],
    counts: Counter[str],
) -> _Plan:
    begins, ends = chunks.student_begins, chunks.student_ends
    all_trained = _all_between(trained, begins, ends)
    minimal = all_trained & _all_between(scores.scored, chunks.teacher_begins, chunks.teacher_ends)
    _count_tokens(chunks, trained, all_trained, minimal, counts)
    first_scored = scores.scored[chunks.teacher_begins]
    topk = scores.ids.shape[1] > 1
    usable = chunks.cut & first_scored & topk & (begins > 0)
    wanted = chunks.cut & trained[begins]
    cut = usable & wanted & ~chunks.one_space
    counts["cut_not_scored"] += int((wanted & ~first_scored).sum())
    counts["cut_no_topk"] += int((wanted & first_scored).sum()) * (not topk)
    counts["cut_one_space"] += int((wanted & usable & chunks.one_space).sum())
    counts["cuts"] += int(cut.sum())
    counts["unsafe_starts"] += int((cut & chunks.unsafe_start).sum())
    next_cut = _next(chunks.cut)
    reachable = np.append(usable & chunks.linked, False)[next_cut]
    whole = _all_between(minimal, np.arange(len(chunks)), next_cut)
    short = np.append(begins, ends[-1:])[next_cut] - begins <= LONGEST_CHUNK
    counts["open_end"] += int((cut & ~reachable).sum())
    counts["chunk_untrained"] += int((cut & reachable & ~whole).sum())
    counts["chunk_too_long"] += int((cut & reachable & whole & ~short).sum())
    compared = cut & reachable & whole & short
    end = np.zeros(len(chunks), dtype=np.bool_)
    end[next_cut[compared]] = True
    return _Plan(minimal, cut, compared, end, next_cut)


def _count_tokens(
    chunks: Chunks, trained: Flags, all_trained: Flags, minimal: Flags, counts: Counter[str]
) -> None:
    before = np.append(0, np.cumsum(trained))
    in_chunk = before[chunks.student_ends] - before[chunks.student_begins]
    counts["trained_tokens"] += int(before[-1])
    counts["minimal_tokens"] += int(in_chunk[minimal].sum())
    counts["no_chunk"] += int(before[-1] - in_chunk.sum())
    counts["partly_trained"] += int(in_chunk[~all_trained].sum())
    counts["not_scored"] += int(in_chunk[all_trained & ~minimal].sum())


def _arrays(
    pair: TokenizerPair,
    student_ids: npt.NDArray[np.integer],
    chunks: Chunks,
    plan: _Plan,
    scores: _Scores,
    counts: Counter[str],
) -> ChunkArrays:
    classed = np.flatnonzero(plan.cut | plan.end)
    tokens_at, chunk = _tokens(len(student_ids), chunks, plan, classed)
    # Where a row is that of no chunk's begin this is any number, and it is not looked at.
    row_of_begin = np.searchsorted(tokens_at, chunks.student_begins)
    rows = row_of_begin[classed]
    tokens = student_ids[tokens_at].astype(np.int64)
    at = scores.row[chunks.teacher_begins[classed]]
    found = teacher_cells(pair, scores.ids[at], scores.probabilities[at], chunks.before[classed])
    same = same_cells(pair, tokens[rows], found.cells, found.observed_cell)
    counts["other_cell"] += int((plan.compared[classed] & ~same).sum())
    boundary = _at_rows(len(tokens), rows, found.boundary, 0.0)
    surprisal = -_summed(scores.logprob, chunks.teacher_begins, chunks.teacher_ends)
    compared = np.flatnonzero(plan.compared)
    starts, ends = row_of_begin[compared], row_of_begin[plan.next_cut[compared]]
    path = boundary[ends] - _summed(surprisal, compared, plan.next_cut[compared])
    begin = np.maximum.accumulate(np.where(chunks.cut, np.arange(len(chunks)), 0))
    return ChunkArrays(
        pair=pair,
        positions=tokens_at - 1,
        tokens=tokens,
        before=_at_rows(len(tokens), rows, chunks.before[classed], MARKER),
        cut=_at_rows(len(tokens), rows, plan.cut[classed], False),
        cells=_at_rows(len(tokens), rows, found.cells, NO_ID),
        cell_mass=_at_rows(len(tokens), rows, found.cell_mass, 0.0),
        cell_open=_at_rows(len(tokens), rows, found.cell_open, False),
        tail_mass=_at_rows(len(tokens), rows, found.tail_mass, 0.0),
        observed_cell=_at_rows(len(tokens), rows, found.observed_cell, found.cells.shape[1]),
        sampled_cell=_at_rows(len(tokens), rows, found.sampled_cell, False),
        same_cell=_at_rows(len(tokens), rows, same, False),
        boundary=boundary,
        chunk_start=np.where(plan.compared[begin], row_of_begin[begin], NO_ROW)[chunk],
        chunk_end=_at_rows(len(tokens), starts, ends, NO_ROW),
        path=_at_rows(len(tokens), starts, path, 0.0),
        minimal_chunk=np.where(plan.minimal, np.cumsum(plan.minimal) - 1, NO_ROW)[chunk],
        minimal_surprisal=surprisal[plan.minimal],
        counts=counts,
    )


def _tokens(length: int, chunks: Chunks, plan: _Plan, classed: Ints) -> tuple[Ints, Ints]:
    """The student tokens that are read, int64 [N], and the chunk of each."""
    sizes = chunks.student_ends - chunks.student_begins
    chunk_of = np.full(length, NO_ROW, dtype=np.int64)
    before = np.cumsum(sizes) - sizes
    inside = np.repeat(chunks.student_begins - before, sizes) + np.arange(int(sizes.sum()))
    chunk_of[inside] = np.repeat(np.arange(len(chunks)), sizes)
    read = np.append(plan.minimal, False)[chunk_of]
    read[chunks.student_begins[classed]] = True
    tokens_at = np.flatnonzero(read)
    return tokens_at, chunk_of[tokens_at]


def _next(flags: Flags) -> Ints:
    """int64 [C]: the next index after each that is set; C where there is none."""
    places = np.append(np.flatnonzero(flags), len(flags))
    found: Ints = places[np.searchsorted(places[:-1], np.arange(len(flags)), side="right")]
    return found


def _summed(values: Floats, begins: Ints, ends: Ints) -> Floats:
    """Sums of ``values`` over stretches."""
    before = np.append(0.0, np.cumsum(values))
    found: Floats = before[ends] - before[begins]
    return found


def _all_between(flags: Flags, begins: Ints, ends: Ints) -> Flags:
    """Whether all flags of each stretch are set."""
    before = np.append(0, np.cumsum(flags))
    found: Flags = before[ends] - before[begins] == ends - begins
    return found


def _at_rows(count: int, rows: Ints, values: npt.NDArray[_Value], absent: float) -> npt.NDArray[_Value]:
    """[count, ...]: ``values`` at ``rows``, ``absent`` elsewhere."""
    found = np.full((count, *values.shape[1:]), absent, dtype=values.dtype)
    found[rows] = values
    return found

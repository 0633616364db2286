"""Figures of one group for the journal: tokens, trained tokens, teacher targets and their mass."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from atroposlib.types import ABSENT_LOGPROB, IGNORED


def group_stats(group: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and captured mass of a group as an environment sends it.

    The teacher's arrays may be ragged or end early, as the API pads them: what is missing is no target.

    Returns:
        ``sequences``; ``tokens``; ``trained_tokens`` (mask not -100); ``target_tokens`` (trained, at least
        one column of the teacher is present, and they can be probabilities); ``captured_mass``, the mean over
        target tokens of the teacher's probability that the present columns hold, None without any.
    """
    target_tokens, mass = 0, 0.0
    ids_of, logprobs_of = group.get("distill_token_ids"), group.get("distill_logprobs")
    if ids_of is not None and logprobs_of is not None:
        for mask, ids, logprobs in zip(group["masks"], ids_of, logprobs_of, strict=False):
            rows = zip(mask, ids, logprobs, strict=False)
            count, held = _targets([(row, values) for trained, row, values in rows if trained != IGNORED])
            target_tokens += count
            mass += held
    return {
        "sequences": len(group["tokens"]),
        "tokens": sum(len(ids) for ids in group["tokens"]),
        "trained_tokens": sum(value != IGNORED for mask in group["masks"] for value in mask),
        "target_tokens": target_tokens,
        "captured_mass": mass / target_tokens if target_tokens else None,
    }


def _targets(rows: list[tuple[list[int], list[float]]]) -> tuple[int, float]:
    """Rows (ids and logprobs) that are targets among R, and the sum of the probability they hold."""
    # Imported here because numpy takes longer to import than --help may take to print.
    import numpy as np

    from atroposlib.wire.targets import MOST_MASS

    widths, ids_flat, values = _flat(rows)
    present = (ids_flat >= 0) & (values > ABSENT_LOGPROB)
    row_of = np.repeat(np.arange(len(rows)), widths)
    with np.errstate(over="ignore"):
        masses = np.bincount(row_of[present], weights=np.exp(values[present]), minlength=len(rows))
    # A row with NaN or too much probability is made absent before it is sent.
    sound = masses <= MOST_MASS
    targets = sound & (np.bincount(row_of[present], minlength=len(rows)) > 0)
    return int(targets.sum()), float(masses[targets].sum())


def _flat(rows: list[tuple[Any, Any]]) -> tuple[Any, Any, Any]:
    """Columns of each of R rows, and all ids and logprobs one after the other."""
    import numpy as np

    if rows and isinstance(rows[0][0], np.ndarray):
        ids = np.stack([row for row, _ in rows])
        values = np.stack([values for _, values in rows])
        return np.full(len(rows), ids.shape[1]), ids.ravel(), values.ravel().astype(np.float64)
    widths = [min(len(ids), len(logprobs)) for ids, logprobs in rows]
    cut = [(ids[:width], logprobs[:width]) for (ids, logprobs), width in zip(rows, widths, strict=True)]
    ids_flat = np.fromiter(chain.from_iterable(ids for ids, _ in cut), dtype=np.int64)
    return widths, ids_flat, np.fromiter(chain.from_iterable(values for _, values in cut), dtype=np.float64)

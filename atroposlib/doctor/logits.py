"""Names the one cause for which a server's answers are refused on every route: it answers logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from atroposlib.doctor.check import Check
from atroposlib.doctor.subject import Subject, patiently
from atroposlib.teacher.checks import LEAST_BEST, SLACK
from atroposlib.teacher.transport import send

NORMALISED = "normalised"
PROBE_IDS = (10, 11, 12)
PROBE_TOP_K = 5


def judge(server: str, values: NDArray[np.floating]) -> Check | None:
    """A failed check where ``values`` [R, K] (-inf for absent ones) are no logprobs, else None."""
    with np.errstate(over="ignore"):
        mass = np.exp(values).sum(axis=1)
    best = values.max(axis=1)
    # A standing token alone may be as unlikely as it likes.
    has_best = values.shape[1] > 1
    if best.max() <= SLACK and mass.max() <= 1 + SLACK and not (has_best and best.min() < LEAST_BEST):
        return None
    facts = {"highest": float(best.max()), "lowest_best": float(best.min()), "largest_sum": float(mass.max())}
    detail = (
        f"logits, not logprobs: the likeliest tokens have {best.min():.3g} to {best.max():.3g}, and a row "
        f"adds up to {mass.max():.3g}"
    )
    return Check(
        NORMALISED, server, "fail", detail, "start the server with --logprobs-mode raw_logprobs", facts
    )


async def detect_logits(subject: Subject) -> list[Check]:
    """A failed check where a raw answer of ``/v1/completions`` holds logits; empty where it says nothing."""
    request: dict[str, Any] = {
        "prompt": list(PROBE_IDS),
        "prompt_logprobs": PROBE_TOP_K,
        "max_tokens": 1,
        "temperature": 0.0,
    }
    if subject.peer.model is not None:
        request["model"] = subject.peer.model
    answer = await patiently(lambda: send(subject.session, subject.peer, "/v1/completions", request))
    try:
        rows = orjson.loads(answer.content)["choices"][0]["prompt_logprobs"][1:]
        members = [[float(member["logprob"]) for member in row.values()] for row in rows]
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError, AttributeError):
        return []
    if not all(members):
        return []
    values = np.full((len(members), max(map(len, members), default=0)), -np.inf)
    for row, told in zip(values, members, strict=True):
        row[: len(told)] = told
    found = judge(subject.name, values) if values.size else None
    return [] if found is None else [found]

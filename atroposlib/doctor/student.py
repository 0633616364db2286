"""The student's server: does it sample with ids, and does it score its own samples as it drew them?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atroposlib.doctor.check import Check, Status, failed
from atroposlib.doctor.server import find_scoring
from atroposlib.doctor.subject import PATIENCE_S, Scoring, Subject, as_ids
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import AtroposError
from atroposlib.types import Completion

SAMPLES = "samples"
OWN_TEACHER = "own teacher"

PROMPT_TOKENS = 32
SAMPLING = {"n": 4, "max_tokens": 48, "temperature": 1.0}

ROUNDING_NATS = 0.02
OTHER_MODEL_NATS = 0.2


async def check_samples(subject: Subject, ids: list[int]) -> tuple[Check, Completion | None]:
    """Sample after some of ``ids`` as a rollout does: token ids with their logprobs at temperature 1."""
    config = subject.config.model_copy(update={"timeout": int(subject.peer.timeout_s)})
    try:
        async with ServerManager([config], patience_s=PATIENCE_S) as manager:
            drawn = await manager.sample(ids[:PROMPT_TOKENS], **SAMPLING)
    except AtroposError as error:
        return failed(SAMPLES, subject.name, error), None
    count = sum(map(len, drawn.token_ids))
    if count == 0:
        return Check(
            SAMPLES, subject.name, "warn", "the student ends every sample before its first token"
        ), None
    return Check(SAMPLES, subject.name, "ok", f"{count} sampled ids, each with its logprob"), drawn


async def check_own_teacher(subject: Subject, drawn: Completion) -> list[Check]:
    """The student scored as its own teacher: the KL over its own samples must be about 0.

    Raises:
        AtroposError: The server does not score what it sampled.
    """
    found, server = await find_scoring(subject)
    if server is None:
        why = f"the student's server does not score: {found[0].detail}"
        return [Check(OWN_TEACHER, subject.name, "skip", why)]
    sampled = [index for index, ids in enumerate(drawn.token_ids) if ids]
    gaps = np.concatenate([await _gaps(server, drawn, index) for index in sampled])
    kl, mean, largest = float(gaps.mean()), float(np.abs(gaps).mean()), float(np.abs(gaps).max())
    facts = {"kl_nats": kl, "mean_difference_nats": mean, "largest_difference_nats": largest}
    detail = f"KL {kl:.2g} nats over {len(gaps)} sampled tokens; at most {largest:.2g} nats apart"
    if mean <= ROUNDING_NATS:
        return [Check(OWN_TEACHER, subject.name, "ok", detail, facts=facts)]
    fix = (
        "sampled and scored logprobs must be of one distribution: start the student with --logprobs-mode "
        "raw_logprobs, without speculative decoding, and refresh no weights meanwhile"
    )
    status: Status = "warn" if mean <= OTHER_MODEL_NATS else "fail"
    return [Check(OWN_TEACHER, subject.name, status, detail, fix, facts)]


async def _gaps(server: Scoring, drawn: Completion, index: int) -> NDArray[np.float32]:
    """Logprob (nats) of each sampled token as it was drawn, less the one that scoring gives it."""
    ids = as_ids(drawn.prompt_ids + drawn.token_ids[index])
    scores = await server.score(ids, start=len(drawn.prompt_ids))
    return np.asarray(drawn.logprobs[index], dtype=np.float32) - scores.logprobs[:, 0]

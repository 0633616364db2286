"""Score the prompts of a batch: only the rows that somebody wants pass the head."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np
import torch
from numpy.typing import NDArray

from atroposlib.modelserver.scoring import NotFiniteError, finite_rows, score_hidden
from atroposlib.modelserver.work import Job, PromptScores


def score_prompts(
    jobs: Many[Job], hidden: torch.Tensor, head: Callable[[torch.Tensor], torch.Tensor], vocab: int
) -> None:
    """Fill in ``prompt_scores`` of the jobs that ask for them, or ``error`` where the logits are not finite.

    Args:
        jobs: J jobs.
        hidden: Their hidden states [J, T, H], padded on the right.
        head: Maps [n, H] to float logits [n, V].
        vocab: V.
    """
    scored = [(row, job) for row, job in enumerate(jobs) if _wants_scores(job)]
    if not scored:
        return
    wanted = [hidden[row, job.options.scored_from - 1 : len(job.prompt_ids) - 1] for row, job in scored]
    width = max(_named_ids(job).shape[1] for _, job in scored)
    named = np.concatenate([_columns(job, width) for _, job in scored])
    k = max(job.options.prompt_logprobs or 0 for _, job in scored)
    results = score_hidden(torch.cat(wanted), torch.from_numpy(named).to(hidden.device), k, head, vocab)
    counts = [len(states) for states in wanted]
    for (_, job), ids, logprobs, ranks in zip(
        scored, *(torch.split(part, counts) for part in results), strict=True
    ):
        if not finite_rows(logprobs).all():
            job.error = NotFiniteError("the model's logits are not finite")
        arrays = (ids.cpu().numpy(), logprobs.float().cpu().numpy(), ranks.cpu().numpy())
        job.prompt_scores = _scores(job, width, *arrays)


def _wants_scores(job: Job) -> bool:
    wanted = job.options.prompt_logprobs is not None and job.prompt_scores is None
    return wanted and len(job.prompt_ids) > job.options.scored_from


def _named_ids(job: Job) -> NDArray[np.int32]:
    """int32 [R, E] of the job, E zero when it names none."""
    named = job.options.named_ids
    rows = len(job.prompt_ids) - job.options.scored_from
    return np.empty((rows, 0), np.int32) if named is None else named


def _columns(job: Job, width: int) -> NDArray[np.int64]:
    """int64 [R, 1 + width]: the prompt's tokens, then the named ids; id 0 where there is none."""
    named = _named_ids(job)
    columns = np.zeros((len(named), 1 + width), np.int64)
    columns[:, 0] = job.prompt_ids[job.options.scored_from :]
    columns[:, 1 : 1 + named.shape[1]] = named.clip(0)
    return columns


def _scores(
    job: Job, width: int, ids: NDArray[np.int64], logprobs: NDArray[np.float32], ranks: NDArray[np.int64]
) -> PromptScores:
    """The job's share of the columns: its token, ``width`` named ids, and more of the top-k than it wants."""
    top = slice(1 + width, 1 + width + (job.options.prompt_logprobs or 0))
    named = _named_ids(job)
    return PromptScores(
        np.concatenate([ids[:, :1], ids[:, top]], axis=1),
        np.concatenate([logprobs[:, :1], logprobs[:, top]], axis=1),
        ranks,
        np.where(named < 0, np.float32(np.nan), logprobs[:, 1 : 1 + named.shape[1]]),
    )

"""What to tell when batches hold nothing that the losses of a run can learn from."""

from __future__ import annotations

from collections.abc import Sequence

from atroposlib.collate.sequences import CollateCounts, TrainSequence
from atroposlib.config.losses.across import ChunkLikelihood
from atroposlib.config.losses.base import LossSettings
from atroposlib.errors import ConfigError, RunError

NO_TOP_K = "no_top_k"

FIXES = {
    "no_same_tokenizer_target": "the teachers have another tokenizer than the student, and no loss reads "
    "them: set loss: auto, or add a teacher with the student's tokenizer",
    NO_TOP_K: "the teacher sends no top-k, which quotient_distillation needs: raise env.teacher_top_k, or "
    "for text that the student did not sample set chunk_likelihood with debiased: false",
    "no_generation_logprob": "the groups carry no inference_logprobs: does the environment sample through a "
    "server that tells them?",
    "no_reference_logprob": "add ref_logprobs to the groups, or a teacher named reference with top-k 0",
    "no_pair": "dpo needs groups of two or more sequences with unequal scores",
}
"""By the reason of most tokens that were not trained."""

OTHER_FIX = "does the environment have a teacher (teacher_enabled)? is max_token_len long enough?"


def no_target(batches: int, step: int, counts: CollateCounts) -> RunError:
    """The error after so many batches in a row without a target, given what the last one held."""
    reasons = (+counts.untrained_rows).most_common(1)
    return RunError(
        f"nothing to learn from in {batches} batches in a row",
        code="train.no_target",
        where=f"after step {step}",
        got=f"dropped groups of the last batch by reason: {dict(counts.dropped_groups)}, "
        f"its marked tokens: {dict(+counts.untrained_rows)}",
        fix=FIXES.get(reasons[0][0], OTHER_FIX) if reasons else OTHER_FIX,
    )


def refuse_own_samples(losses: Sequence[LossSettings], sequences: Sequence[TrainSequence]) -> None:
    """Refuse to train on nothing but the likelihood of chunks that the student itself sampled.

    It pushes its own tokens down without a word on where their mass should go (docs/losses.md).

    Raises:
        ConfigError: That is what the settings come to.
    """
    trained = [loss for loss in losses if loss.weight]
    alone = all(isinstance(loss, ChunkLikelihood) and not loss.own_samples for loss in trained)
    if alone and any(sequence.own and sequence.chunks for sequence in sequences):
        raise ConfigError(
            "chunk_likelihood alone makes a student worse on its own samples",
            where="loss",
            fix="set quotient_distillation, which needs a top-k of 1 or more; add another loss; or set "
            "own_samples: true in chunk_likelihood",
        )

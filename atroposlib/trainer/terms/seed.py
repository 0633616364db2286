"""Losses of the seed page that read tokens: likelihood, clipped policy gradient, preferences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.collate.batch import Batch
from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.sources import Source
from atroposlib.config.losses.policy import DPO, NLL, ClippedPG
from atroposlib.losses.compatible.clipped_pg import ClippedPGLossFn
from atroposlib.losses.compatible.clipped_pg_config import ClippedPGLossConfig
from atroposlib.losses.compatible.dpo import DPOLossConfig, DPOLossFn
from atroposlib.losses.compatible.interfaces import LossFunction
from atroposlib.losses.compatible.nll import NLLLossFn
from atroposlib.losses.compatible.prepare import prepare_loss_input
from atroposlib.losses.head import Head
from atroposlib.losses.linear import Metrics
from atroposlib.trainer.terms.term import Reads, StepCount, TermLoss, count_of
from atroposlib.types import ABSENT_LOGPROB

NOT_SUMS = ("_min", "_max")
"""Ends of the names of metrics that do not add up over micro-batches."""


def token_data(batch: Batch, positions: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    """What every class of the seed page reads of a micro-batch.

    Args:
        batch: B sequences.
        positions: Of each, where logits predict the tokens that are trained.
    """
    mask = np.zeros(batch.input_ids.shape, np.float32)
    for row, trained in enumerate(positions):
        mask[row, trained + 1] = 1.0
    token_mask = torch.from_numpy(mask).to(batch.input_ids.device)
    return {
        "input_ids": batch.input_ids,
        "input_lengths": batch.attention_mask.sum(-1),
        "token_mask": token_mask,
        "sample_mask": (token_mask.sum(-1) > 0).to(token_mask.dtype),
    }


def called(
    loss_fn: LossFunction, states: Tensor, head: Head, data: dict[str, Any], count: StepCount
) -> tuple[Tensor, Metrics]:
    """The loss of a class of the seed page, and those of its metrics that add up.

    Args:
        loss_fn: The class.
        states: [B * T, H].
        head: The student's output layer.
        data: The micro-batch.
        count: Of the step.
    """
    hidden = states.view(*data["input_ids"].shape, -1)
    inputs = prepare_loss_input(hidden, data, loss_fn, head=head)
    if data.get("prev_logprobs", "") is None:
        data["prev_logprobs"] = _with_column(inputs["next_token_logprobs"].detach())
    loss, metrics = loss_fn(
        data=data,
        global_valid_seqs=torch.tensor(count.sequences, device=states.device),
        global_valid_toks=torch.tensor(count.units, device=states.device),
        **inputs,
    )
    return loss, {
        name: value for name, value in metrics.items() if not name.endswith(NOT_SUMS) and name != "loss"
    }


def _with_column(logprobs: Tensor) -> Tensor:
    """[B, T] of [B, T-1]: column t speaks of token t."""
    return torch.cat([torch.zeros_like(logprobs[:, :1]), logprobs], 1)


@dataclass(frozen=True, slots=True)
class TokenTerm:
    """A class that reads each sequence by itself.

    Attributes:
        loss_fn: The class.
        reads: Its signals are what a token must have.
    """

    name: str
    weight: float
    loss_fn: LossFunction
    reads: Reads
    current_is_old: bool = False

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return False

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """Positions of tokens that have the signals."""
        return sequence.positions(self.reads.signals or ())

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """See :class:`Term`."""
        return count_of([len(self.learned(one)) for one in sequences])

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """See :class:`Term`."""
        data = token_data(batch, [self.learned(one) for one in batch.sequences])
        data["rewards"] = torch.tensor([one.score for one in batch.sequences], device=states.device)
        for key, name in _SIGNALS.items():
            data[key] = _padded(batch, name)
        if self.current_is_old:
            data["prev_logprobs"] = None
        loss, metrics = called(self.loss_fn, states, head, data, count)
        yield TermLoss(self.name, None, self.weight, loss, metrics)


_SIGNALS = {
    "advantages": "advantages",
    "prev_logprobs": "generation",
    "generation_logprobs": "generation",
    "reference_policy_logprobs": "reference",
}


def _padded(batch: Batch, name: str) -> Tensor:
    """[B, T] of a signal, absent where there is none."""
    values = batch.padded(lambda one: getattr(one.signals, name), ABSENT_LOGPROB)
    return torch.where(values.isnan(), ABSENT_LOGPROB, values)


def nll_term(settings: NLL) -> TokenTerm:
    """``nll`` with these settings."""
    loss_fn = NLLLossFn(use_fused_linear_logprobs=True)
    return TokenTerm(settings.name, settings.weight, loss_fn, Reads(signals=()))


def clipped_pg_term(settings: ClippedPG) -> TokenTerm:
    """``clipped_pg`` with these settings."""
    config = ClippedPGLossConfig.of(settings.model_dump(include=set(ClippedPGLossConfig.model_fields)))
    needed = ["advantages"]
    needed += ["generation"] if settings.needs_generation else []
    needed += ["reference"] if settings.needs_reference else []
    return TokenTerm(
        settings.name,
        settings.weight,
        ClippedPGLossFn(config, use_fused_linear_logprobs=True),
        Reads(signals=tuple(needed)),
        current_is_old=settings.old_logprobs == "current",
    )


_READS_PAIRS = Reads(signals=("reference",), pairs=True)


@dataclass(frozen=True, slots=True)
class DpoTerm:
    """``dpo`` on the pairs of groups."""

    weight: float
    loss_fn: DPOLossFn
    name: str = "dpo"
    reads: Reads = _READS_PAIRS

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return False

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """Positions of the tokens of a sequence in a pair."""
        return np.flatnonzero(sequence.trained & (sequence.place is not None)) - 1

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """See :class:`Term`."""
        return count_of([len(self.learned(one)) for one in sequences])

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """See :class:`Term`."""
        places = [(one.place, row) for row, one in enumerate(batch.sequences) if one.place is not None]
        # Each chosen one, and its rejected one after it.
        rows = [row for place, row in sorted(places, key=lambda one: (one[0].pair, not one[0].chosen))]
        if not rows:
            return
        at = torch.tensor(rows, device=states.device)
        data = token_data(batch, [self.learned(one) for one in batch.sequences])
        reference = _padded(batch, "reference").roll(-1, 1)
        data = {key: value[at] for key, value in (data | {"reference_policy_logprobs": reference}).items()}
        kept = states.view(*batch.input_ids.shape, -1)[at].flatten(0, 1)
        loss, metrics = called(self.loss_fn, kept, head, data, count)
        yield TermLoss(self.name, None, self.weight, loss, metrics)


def dpo_term(settings: DPO) -> DpoTerm:
    """``dpo`` with these settings."""
    config = DPOLossConfig.of(settings.model_dump(include=set(DPOLossConfig.model_fields)))
    return DpoTerm(settings.weight, DPOLossFn(config, use_fused_linear_logprobs=True))

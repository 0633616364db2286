"""Bradley-Terry loss of pairs: a chosen sequence's reward against a rejected one's."""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.nn import functional

from atroposlib.errors import LossError
from atroposlib.losses.compatible.interfaces import Data, LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.masked import masked_mean
from atroposlib.losses.compatible.sharded import wide


class PairLoss(NamedTuple):
    """Means over the step's pairs: of the loss; of how often the chosen one wins; of the two rewards."""

    loss: Tensor
    accuracy: Tensor
    chosen: Tensor
    rejected: Tensor


class PreferenceLossDataDict(TypedDict):
    """What :class:`PreferenceLossFn` reads; rows 0, 2, ... are chosen, each with its rejected one after it.

    Attributes:
        input_ids: int64 [B, T].
        token_mask: [B, T].
        sample_mask: [B], 1 where the sequence is trained, alike for the two of a pair.
    """

    input_ids: Tensor
    token_mask: Tensor
    sample_mask: Tensor


class PreferenceLossFn(LossFunction):
    """-mean of log sigmoid(beta * (reward of the chosen - reward of the rejected))."""

    loss_type = LossType.SEQUENCE_LEVEL
    input_type = LossInputType.LOGIT

    def split_output_tensor(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Rows 0, 2, ... (chosen) and 1, 3, ... (rejected).

        Raises:
            LossError: An odd number of rows.
        """
        if tensor.shape[0] % 2:
            raise LossError("a row has no partner", got=f"{tensor.shape[0]} rows", expected="pairs of rows")
        return tensor[::2], tensor[1::2]

    def _preference_loss(
        self, rewards: Tensor, sample_mask: Tensor, global_valid_seqs: Tensor, beta: float = 1.0
    ) -> PairLoss:
        """Means over the step's pairs, of which there are ``global_valid_seqs`` / 2.

        Args:
            rewards: [B].
            sample_mask: [B].
            global_valid_seqs: Trained sequences of the whole step.
            beta: Factor on the difference of two rewards.
        """
        chosen, rejected = self.split_output_tensor(rewards)
        losses = -functional.logsigmoid(beta * (chosen - rejected))
        wins = (chosen > rejected).to(rewards.dtype)

        def mean(values: Tensor) -> Tensor:
            return masked_mean(values, self._whole_pairs(sample_mask), None, global_valid_seqs / 2)

        return PairLoss(mean(losses), mean(wins), mean(chosen).detach(), mean(rejected).detach())

    def _whole_pairs(self, sample_mask: Tensor) -> Tensor:
        """[B / 2], 1 where both sequences of a pair are trained: one alone says nothing of a preference."""
        return torch.minimum(*self.split_output_tensor(sample_mask))

    def _pair_metrics(self, pairs: PairLoss, sample_mask: Tensor) -> dict[str, Tensor]:
        whole = self._whole_pairs(sample_mask)
        return {
            "accuracy": pairs.accuracy,
            "rewards_chosen_mean": pairs.chosen,
            "rewards_rejected_mean": pairs.rejected,
            "num_valid_samples": whole.sum(),
            "num_half_pairs": (torch.maximum(*self.split_output_tensor(sample_mask)) - whole).sum(),
        }

    def __call__(
        self,
        logits: Tensor,
        data: Data,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and its metrics.

        Args:
            logits: [B, 1] rewards.
            data: ``sample_mask``; see :class:`PreferenceLossDataDict`.
            global_valid_seqs: Trained sequences of the whole step, over all ranks.
            global_valid_toks: Not used.

        Returns:
            A scalar; the metrics ``loss``, ``accuracy``, ``rewards_chosen_mean``,
            ``rewards_rejected_mean``, ``num_valid_samples`` (pairs) and ``num_half_pairs`` (left out, since
            one of the two is not trained), detached.

        Raises:
            LossError: An odd number of sequences.
        """
        rewards = wide(logits).squeeze(-1)
        sample_mask = data["sample_mask"].to(rewards.dtype)
        pairs = self._preference_loss(rewards, sample_mask, global_valid_seqs)
        return pairs.loss, {"loss": pairs.loss.detach(), **self._pair_metrics(pairs, sample_mask)}

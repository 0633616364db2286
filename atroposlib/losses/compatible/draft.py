"""Cross entropy of a draft model's distribution against the policy's own."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from atroposlib.losses.compatible.interfaces import Data, LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.masked import masked_mean
from atroposlib.losses.compatible.sharded import log_partition, wide
from atroposlib.losses.groups import Group, largest, summed_replicated


class DraftCrossEntropyLossConfig(TypedDict):
    """Settings of :class:`DraftCrossEntropyLossFn`.

    Attributes:
        vocab_parallel_group: Ranks that hold consecutive, equal slices of both vocabularies; None for one.
    """

    vocab_parallel_group: Group | None


class DraftCrossEntropyLossDataDict(TypedDict):
    """What :class:`DraftCrossEntropyLossFn` and the preparation of its input read.

    Attributes:
        teacher_logits, student_logits: [B, T, V], of the policy and of the draft model.
        token_mask: [B, T].
        sample_mask: [B].
        student_vocab_indices: int64 [V of the draft model], the policy's id of each of its tokens.
    """

    teacher_logits: Tensor
    student_logits: Tensor
    token_mask: Tensor
    sample_mask: Tensor
    student_vocab_indices: NotRequired[Tensor]


class DraftCrossEntropyLossFn(LossFunction):
    """-sum over tokens and vocabulary of teacher probability * student logprob / ``global_valid_toks``.

    Args:
        vocab_parallel_group: Ranks that hold consecutive, equal slices of the vocabulary.
    """

    loss_type = LossType.TOKEN_LEVEL
    input_type = LossInputType.DRAFT

    def __init__(self, vocab_parallel_group: Group | None = None) -> None:
        self.vocab_parallel_group = vocab_parallel_group

    def __call__(
        self,
        teacher_logits: Tensor,
        student_logits: Tensor,
        token_mask: Tensor,
        data: Data,
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> Tensor:
        """The loss, a scalar.

        Args:
            teacher_logits: [B, T, V]; no gradient flows into them.
            student_logits: [B, T, V]; row t speaks of the same token as the teacher's.
            token_mask: [B, T], of the token that row t speaks of.
            data: ``sample_mask`` [B].
            global_valid_seqs: Not used.
            global_valid_toks: Trained tokens of the whole step, over all ranks.
        """
        mask = token_mask * data["sample_mask"][:, None]
        kept = mask != 0
        per_token = self._cross_entropy(wide(teacher_logits.detach()[kept]), wide(student_logits[kept]))
        return masked_mean(per_token, mask[kept], None, global_valid_toks)

    def _cross_entropy(self, teacher: Tensor, student: Tensor) -> Tensor:
        """[N] of rows of logits [N, V]."""
        group = self.vocab_parallel_group
        weights = (teacher - log_partition(teacher, group)).exp()
        shifted = student - largest(student.detach().amax(-1, keepdim=True), group)
        # A column that both vocabularies are padded with is -inf on both sides.
        terms = weights * torch.where(weights > 0, shifted, 0.0)
        return log_partition(shifted, group).squeeze(-1) - summed_replicated(terms.sum(-1), group)

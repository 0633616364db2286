"""Distillation from a teacher's top-k columns, renormalised over them: the seed page's class.

With q the teacher's and p the student's probabilities of a row's K columns, both renormalised over them, a
row's loss is KL(q || p) (``forward``), KL(p || q) (``reverse``) or w KL(q || p) + (1 - w) KL(p || q)
(``mixed``), in nats. ``zero_outside_topk`` takes p over the whole vocabulary and adds, to the reverse KL,
sum of p log p + 100 p over the other tokens: the teacher's log probability there is taken to be -100.

Either way the teacher's own mass outside its columns is not seen, and a student that scales all columns alike
pays nothing without ``zero_outside_topk``: :func:`atroposlib.losses.topk_distillation` is the sound form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import torch
from pydantic import Field
from torch import Tensor

from atroposlib.config.losses.compatible import DistillationFields
from atroposlib.errors import LossError
from atroposlib.losses.compatible.interfaces import Data, LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.masked import absent, masked_mean
from atroposlib.losses.compatible.settings import Settings

OUTSIDE_LOGPROB = -100.0
"""What ``zero_outside_topk`` takes for the teacher's log probability of a token outside its columns."""


class DistillationLossConfig(Settings, DistillationFields):
    """Settings of :class:`DistillationLossFn`."""

    require_masks: bool = Field(
        False,
        description="Refuse a batch without masks. Its loss would be the mean over its own rows, as in "
        "NeMo RL, and so depend on how a step is cut into batches.",
    )


class DistillationLossDataDict(TypedDict, total=False):
    """What a batch holds. B rows, T positions, K columns.

    Attributes:
        input_ids: int64 [B, T].
        input_lengths: int64 [B].
        token_mask: [B, T], 1 at the tokens that are trained.
        sample_mask: [B], 1 at the rows that are.
        teacher_topk_logits: [B, T, K] logits or log probabilities of the token *after* each position; -inf
            where there is none.
        teacher_topk_indices: int64 [B, T, K] ids; negative where there is none.
    """

    input_ids: Tensor
    input_lengths: Tensor
    token_mask: Tensor
    sample_mask: Tensor
    teacher_topk_logits: Tensor
    teacher_topk_indices: Tensor


class DistillationLossFn(LossFunction):
    """Distillation loss of one micro-batch, a mean over the trained tokens of the whole step."""

    loss_type = LossType.TOKEN_LEVEL
    input_type = LossInputType.DISTILLATION

    def __init__(self, cfg: DistillationLossConfig | Mapping[str, Any]) -> None:
        """Take the settings.

        Raises:
            ConfigError: They are none.
        """
        self.cfg = DistillationLossConfig.of(cfg)

    def __call__(
        self,
        student_topk_logprobs: Tensor,
        teacher_topk_logprobs: Tensor,
        H_all: Tensor | None,
        data: Data,
        global_valid_seqs: Tensor | None,
        global_valid_toks: Tensor | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and its metrics.

        Args:
            student_topk_logprobs: [B, T-1, K] log probabilities of the teacher's columns: over them, or over
                the whole vocabulary with ``zero_outside_topk``.
            teacher_topk_logprobs: [B, T-1, K] over the columns; -inf where a column is absent.
            H_all: [B, T-1] the student's sum of p log p over its vocabulary; read where it is needed.
            data: A :class:`DistillationLossDataDict`; the masks are read.
            global_valid_seqs: Not read: this loss is a mean over tokens.
            global_valid_toks: What the sum over trained tokens is divided by.

        Returns:
            The loss (nats a token), and ``loss``, ``num_valid_samples`` (B), ``absent_columns`` and
            ``rows_without_columns`` (counts among the trained rows), and ``batches_without_masks`` (0 or 1).

        Raises:
            LossError: ``H_all`` or, where they are required, the masks are missing.
        """
        present = ~absent(teacher_topk_logprobs)
        student = torch.where(present, student_topk_logprobs, 0.0)
        teacher = torch.where(present, teacher_topk_logprobs, 0.0)
        rows = self._divergence(student, teacher, present, H_all)
        mask = self._mask(data, rows)
        trained = present.any(-1)
        if mask is None:
            loss, counted = torch.where(trained, rows, 0.0).mean(), torch.ones_like(trained)
        else:
            counted = mask > 0
            loss = masked_mean(
                torch.where(trained & counted, rows, 0.0), mask, global_normalization_factor=global_valid_toks
            )
        return loss, {
            "loss": loss.detach(),
            "num_valid_samples": torch.tensor(len(data["input_ids"])),
            "absent_columns": (~present & counted[..., None]).sum(),
            "rows_without_columns": (~trained & counted).sum(),
            "batches_without_masks": torch.tensor(int(mask is None)),
        }

    def _divergence(
        self, student: Tensor, teacher: Tensor, present: Tensor, entropy: Tensor | None
    ) -> Tensor:
        """[B, T-1] in nats; absent columns hold 0 on both sides."""
        difference = student - teacher
        forward = -(torch.where(present, teacher.exp(), 0.0) * difference).sum(-1)
        if self.cfg.kl_type == "forward":
            return forward
        probability = torch.where(present, student.exp(), 0.0)
        reverse = (probability * difference).sum(-1)
        if self.cfg.zero_outside_topk:
            if entropy is None:
                raise LossError("zero_outside_topk needs the student's whole distribution", where="H_all")
            outside = entropy - (probability * student).sum(-1)
            reverse = reverse + outside - OUTSIDE_LOGPROB * (1.0 - probability.sum(-1))
        if self.cfg.kl_type == "reverse":
            return reverse
        return self.cfg.mixed_kl_weight * forward + (1.0 - self.cfg.mixed_kl_weight) * reverse

    def _mask(self, data: Data, rows: Tensor) -> Tensor | None:
        """[B, T-1] of the tokens that rows predict; None where the batch has no masks."""
        if "token_mask" in data and "sample_mask" in data:
            mask: Tensor = data["token_mask"][:, 1 : rows.shape[1] + 1] * data["sample_mask"][:, None]
            return mask.to(rows.dtype)
        if self.cfg.require_masks:
            raise LossError("the batch has no masks", expected="token_mask and sample_mask")
        return None

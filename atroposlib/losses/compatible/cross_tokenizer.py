"""Distillation from teachers with other tokenizers, and with the student's: the seed page's class.

loss = kl_loss_weight KD + ce_loss_scale CE, or, with dynamic scaling, |CE| / |KD| KD + CE with a factor that
no gradient flows through. CE is the student's next-token cross entropy. KD joins one term a teacher: P-KL
(:mod:`.p_kl`), gold and x-token (:mod:`.gold`), or a KL at each position for a teacher with the student's
tokenizer (:mod:`.same_vocabulary`).

These are compatibility modes. None of them is 0 for two models of the same text distribution once the
tokenizers differ; :mod:`atroposlib.losses.across` holds the losses that are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.compatible.cross_tokenizer_config import CrossTokenizerDistillationLossConfig
from atroposlib.losses.compatible.interfaces import Data, LossFunction, LossInputType, LossType
from atroposlib.losses.compatible.kd_modes import MODES
from atroposlib.losses.compatible.localized import LocalizedAlignment, localize
from atroposlib.losses.compatible.masked import EPSILON
from atroposlib.losses.compatible.sharded import log_partition, logits_at, whole_vocabulary, wide
from atroposlib.losses.compatible.sparse_columns import Teacher
from atroposlib.losses.compatible.teacher_terms import Batch, TeacherTerms
from atroposlib.losses.compatible.terms import over_positions
from atroposlib.losses.groups import Group, Groups, summed

logger = logging.getLogger(__name__)


class CrossTokenizerDistillationLossFn(LossFunction):
    """Distillation of one micro-batch from one or several teachers."""

    loss_type = LossType.TOKEN_LEVEL
    input_type = LossInputType.DISTILLATION_CROSS_TOKENIZER

    def __init__(self, cfg: CrossTokenizerDistillationLossConfig | Mapping[str, Any]) -> None:
        """Take the settings, and read the projections.

        Raises:
            ConfigError: Settings that are none or do not fit together, a projection that cannot be read
                (``usage.file``), or a gold loss on a projection that lists pairs.
        """
        self.cfg = CrossTokenizerDistillationLossConfig.of(cfg)
        self.teachers = TeacherTerms(self.cfg)
        self._warn()

    def __call__(
        self,
        data: Data,
        global_valid_seqs: Tensor | None,
        global_valid_toks: Tensor,
        logits: Tensor,
        student_logits_contig: Tensor,
        teacher_full_logits_by_idx: Mapping[int, Teacher],
        aligns_by_idx: Mapping[int, LocalizedAlignment],
        *,
        tp_group: Group | None = None,
        cp_group: Group | None = None,
        dp_group: Group | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss and its metrics, of a batch that :func:`prepare_loss_input` has prepared.

        With groups, every rank's loss is that of the whole micro-batch, and its gradient that of its own
        logits.

        Args:
            data: A :class:`CrossTokenizerDistillationLossDataDict`; the counts of chunks are read.
            global_valid_seqs: Not read: the terms are means over tokens and chunks.
            global_valid_toks: Trained tokens of the whole step.
            logits: [B, t, v] of the student; for the CE.
            student_logits_contig: The same; for the teachers' terms.
            teacher_full_logits_by_idx: Every teacher's logits or shipped columns.
            aligns_by_idx: Every teacher's alignment.
            tp_group: Ranks that hold slices of the student's vocabulary.
            cp_group: Ranks that hold other positions of the same rows.
            dp_group: Ranks with other rows: decisions and counts of a batch are made over them all.

        Returns:
            The loss, and ``loss``, ``kl_loss`` (KD), ``ce_loss``, ``kl_loss_scale``, ``accuracy``,
            ``num_valid_samples`` (B), ``negative_kl`` (1 where KD is below 0), each teacher's own with
            ``_t{i}``, and ``selected_teacher``.

        Raises:
            LossError: A teacher is missing, or its tensors do not fit.
        """
        student = whole_vocabulary(wide(student_logits_contig), tp_group)
        groups = Groups(tp_group, cp_group)
        views = self.teachers.views(student, teacher_full_logits_by_idx, aligns_by_idx, groups)
        tokens = torch.as_tensor(global_valid_toks, device=logits.device)
        batch = Batch(views, data, tokens, dp_group)
        ce = self._cross_entropy(wide(logits), batch)
        kd, metrics = MODES[self.cfg.kd_loss_mode](self.teachers, batch)
        scale = self._scale(kd, ce, batch)
        loss = scale * kd + ce if self.cfg.dynamic_loss_scaling else self._weighed(kd, ce)
        return loss, {
            "loss": loss.detach(),
            "kl_loss": kd.detach(),
            "ce_loss": ce.detach(),
            "kl_loss_scale": scale,
            "accuracy": _accuracy(student, batch),
            "num_valid_samples": torch.tensor(len(data["input_ids"])),
            "negative_kl": (kd.detach() < 0).long(),
            **metrics,
        }

    def _warn(self) -> None:
        """Tell of settings under which a step's gradient depends on how it is cut into batches."""
        of_batch = {
            "global_chunk_counts: true": not self.cfg.global_chunk_counts
            and any(matrix is not None for matrix in self.teachers.matrices),
            "dynamic_loss_scaling: false": self.cfg.dynamic_loss_scaling,
        }
        mends = [mend for mend, holds in of_batch.items() if holds]
        if mends:
            logger.warning("a step's gradient depends on its batches; mended by %s", ", ".join(mends))

    def _cross_entropy(self, logits: Tensor, batch: Batch) -> Tensor:
        view = batch.views[0]
        labels = view.align.student_labels[..., None]
        found = logits_at(logits, labels, view.groups.tensor) - log_partition(logits, view.groups.tensor)
        return over_positions(-found.squeeze(-1), view.align, view.groups).sum() / (batch.tokens + EPSILON)

    def _weighed(self, kd: Tensor, ce: Tensor) -> Tensor:
        return self.cfg.kl_loss_weight * kd + self.cfg.ce_loss_scale * ce

    def _scale(self, kd: Tensor, ce: Tensor, batch: Batch) -> Tensor:
        """What dynamic scaling multiplies KD with; 1 without it, or without a KD."""
        if not self.cfg.dynamic_loss_scaling:
            return torch.ones_like(ce)
        sizes = summed(torch.stack([kd.detach(), ce.detach()]), batch.dp_group)
        return torch.where(sizes[0] == 0, 1.0, (sizes[1] / torch.where(sizes[0] == 0, 1.0, sizes[0])).abs())


def _accuracy(student: Tensor, batch: Batch) -> Tensor:
    """Share of trained tokens that are the student's most probable ones."""
    align, groups = batch.views[0].align, batch.views[0].groups
    mask = align.student_label_mask > 0
    right = mask & (student.detach().argmax(-1) == align.student_labels)
    counts = summed(torch.stack([right.sum(), mask.sum()]), groups.context)
    return counts[0] / counts[1].clamp_min(1).to(student.dtype)


def valid_chunk_count(data: Data, i: int, *, correct_only: bool = False) -> int:
    """How many chunks of a batch teacher ``i``'s term is a mean over.

    Sum it over all batches and ranks of a step for ``alignment_{i}_global_valid_chunks``.

    Args:
        data: A :class:`CrossTokenizerDistillationLossDataDict`.
        i: The teacher; one with the student's tokenizer has no chunks.
        correct_only: For P-KL with ``exact_token_match_only``.
    """
    device = data["input_ids"].device
    student_at = torch.arange(data["input_ids"].shape[1], device=device)
    teacher_at = torch.arange(data[f"teacher_{i}_input_ids"].shape[1], device=device)
    align = localize(data, i, student_at, teacher_at)
    if align.chunks is None:
        return 0
    compared = align.chunks.compared(None, correct_only=correct_only)
    return int((compared & (align.sample_mask > 0)[:, None]).sum())

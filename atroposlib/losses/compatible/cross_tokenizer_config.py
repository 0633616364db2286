"""Settings and batch of the cross-tokenizer distillation class, with what is refused of them."""

from __future__ import annotations

import math
from typing import TypedDict

from pydantic import Field, model_validator
from torch import Tensor

from atroposlib.config.losses.cross_tokenizer import CrossTokenizerFields
from atroposlib.losses.compatible.settings import Settings


class CrossTokenizerDistillationLossConfig(Settings, CrossTokenizerFields):
    """Settings of :class:`CrossTokenizerDistillationLossFn`; lists have one entry a teacher."""

    student_vocab_size: int | None = Field(None, ge=1, description="V_s; None for the projection's.")
    teacher_vocab_sizes: list[int] | None = Field(None, description="V_t; None for the projections'.")
    projection_matrix_paths: list[str | None] = Field(
        min_length=1, description="Projection files; None for a teacher with the student's tokenizer."
    )
    teacher_weights: list[float] | None = Field(None, description="Static weights; None for 1 each.")
    teacher_gold_loss: list[bool | None] | None = Field(None, description="Own gold_loss, in sum mode.")
    teacher_xtoken_loss: list[bool | None] | None = Field(None, description="Own xtoken_loss, likewise.")

    @model_validator(mode="after")
    def _fit_together(self) -> CrossTokenizerDistillationLossConfig:
        count = len(self.projection_matrix_paths)
        for name in ("teacher_vocab_sizes", "teacher_weights", "teacher_gold_loss", "teacher_xtoken_loss"):
            given = getattr(self, name)
            if given is not None and len(given) != count:
                raise ValueError(f"{name} has {len(given)} entries, for {count} teachers")
        if self.xtoken_loss and not self.gold_loss:
            raise ValueError("xtoken_loss modifies the gold loss: set gold_loss")
        for i in range(count):
            gold, xtoken = self.flags_of(i)
            if xtoken and not gold:
                raise ValueError(
                    f"teacher_xtoken_loss[{i}] modifies a gold loss that teacher {i} does not have"
                )
        self._fit_mode()
        return self

    def _fit_mode(self) -> None:
        weights = self.weights
        if not all(map(math.isfinite, [self.temperature, self.alpha, *weights])):
            raise ValueError("a temperature, alpha or weight is not finite")
        if self.kd_loss_mode == "averaged_logits":
            if sum(weights) == 0:
                raise ValueError("averaged_logits divides by the sum of teacher_weights, which is 0")
            if self.refuse_averaged_fallback and any(
                path is not None for path in self.projection_matrix_paths
            ):
                raise ValueError("averaged_logits needs teachers with the student's tokenizer")
        if self.kd_loss_mode != "sum":
            if self.sum_weights_metric is not None:
                raise ValueError("sum_weights_metric belongs to kd_loss_mode sum")
            if self.normalize_teacher_by_vocab:
                raise ValueError("normalize_teacher_by_vocab belongs to kd_loss_mode sum")
        if self.normalize_teacher_by_vocab and min(self.teacher_vocab_sizes or [0]) < 2:
            raise ValueError("normalize_teacher_by_vocab needs teacher_vocab_sizes, of 2 or more")

    @property
    def weights(self) -> list[float]:
        """The static weight of each teacher."""
        return self.teacher_weights or [1.0] * len(self.projection_matrix_paths)

    def flags_of(self, i: int) -> tuple[bool, bool]:
        """(gold, x-token) of teacher ``i``; a teacher's own settings count in sum mode alone."""
        flags = []
        for shared, each in (
            (self.gold_loss, self.teacher_gold_loss),
            (self.xtoken_loss, self.teacher_xtoken_loss),
        ):
            mine = each[i] if each is not None and self.kd_loss_mode == "sum" else None
            flags.append(shared if mine is None else mine)
        return flags[0], flags[1]


class CrossTokenizerDistillationLossDataDict(TypedDict, total=False):
    """What a batch holds beside the keys of each teacher. B rows, T positions.

    Every teacher i brings its distribution: ``teacher_{i}_full_logits_ipc``, logits [B, U, V] or handles of
    them, whose row p speaks of token p + 1; or ``teacher_{i}_topk_ids`` int64 [B, U, K] and
    ``teacher_{i}_topk_logprobs`` as a server ships them, whose row p speaks of token p (id < 0 or -inf:
    absent). A teacher with another tokenizer brings the collator's ``teacher_{i}_input_ids``,
    ``teacher_{i}_token_mask`` [B, U] and ``alignment_{i}_*``; with ``global_chunk_counts`` also a number,
    ``alignment_{i}_global_valid_chunks``.

    Attributes:
        input_ids: int64 [B, T].
        input_lengths: int64 [B].
        token_mask: [B, T], 1 at the tokens that are trained.
        sample_mask: [B], 1 at the rows that are.
    """

    input_ids: Tensor
    input_lengths: Tensor
    token_mask: Tensor
    sample_mask: Tensor

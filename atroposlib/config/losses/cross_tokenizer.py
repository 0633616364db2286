"""Settings of NeMo RL's cross-tokenizer distillation that a user writes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class CrossTokenizerFields(BaseModel):
    """What both the loss class and the trainer take.

    The last five are ours and not the seed page's: each leaves a fault of the recorded library, which stays
    the default of the loss class for the sake of equal values.
    """

    gold_loss: bool = Field(False, description="KL over common tokens and sorted L1 over the others.")
    xtoken_loss: bool = Field(False, description="In the gold loss, let heavy projections count as common.")
    temperature: float = Field(1.0, gt=0, description="Divides both sides' logits; the loss times T^2.")
    vocab_topk: int = Field(8192, ge=1, description="Columns of the P-KL and of a shared vocabulary's KL.")
    uncommon_topk: int = Field(8192, ge=1, description="Most sorted columns of the gold loss's L1.")
    reverse_kl: bool = Field(False, description="KL(student || teacher) instead of KL(teacher || student).")
    exact_token_match_only: bool = Field(False, description="P-KL: leave out pairs of unequal text.")
    kl_loss_weight: float = Field(1.0, description="Factor on the teachers' term; fixed scaling only.")
    ce_loss_scale: float = Field(0.1, description="Factor on the next-token CE; fixed scaling only.")
    dynamic_loss_scaling: bool = Field(
        True, description="Scale the teachers' term to the CE's size, add both."
    )
    kd_loss_mode: Literal["sum", "averaged_logits", "select_teacher"] = Field(
        "sum", description="How several teachers make one term."
    )
    normalize_teacher_by_vocab: bool = Field(False, description="Times log V_t / log of the smallest V_t.")
    alpha: float = Field(1.0, ge=0, description="Sharpness of dynamic weights: softmax(alpha * scores).")
    sum_weights_metric: Literal["ce", "entropy", "max_prob"] | None = Field(
        None, description="Weigh teachers by this score of the batch instead of teacher_weights."
    )
    global_chunk_counts: bool = Field(
        False,
        description="Divide by the step's chunks, `alignment_{i}_global_valid_chunks`, not the batch's.",
    )
    columns_per_row: bool = Field(
        False, description="Choose vocab_topk columns for each chunk or position, not for the whole batch."
    )
    proper_divergence: bool = Field(
        False, description="Never negative and 0 for equal models: equal averages, and q log(q/p) - q + p."
    )
    scores_per_sequence: bool = Field(
        False, description="Weigh or select teachers for each sequence, not for the whole batch."
    )
    refuse_averaged_fallback: bool = Field(
        False, description="An error where averaged_logits cannot average, instead of a weighted sum."
    )

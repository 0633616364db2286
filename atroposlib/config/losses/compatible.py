"""Settings of the distillation losses of other libraries, named for what they are."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from atroposlib.config.losses.base import LossTold, TeacherLossSettings
from atroposlib.config.losses.cross_tokenizer import CrossTokenizerFields
from atroposlib.errors import ConfigError

SAME = "targets of a teacher with the student's tokenizer"


class TruncatedKl(TeacherLossSettings):
    """The sum over the listed tokens alone, clamped, as verl trains it. Not a divergence."""

    told: ClassVar[LossTold] = LossTold(
        formula="forward sum_k q_k (log q_k - log p_k), reverse sum_k p_k (log p_k - log q_k)\n"
        "held between 0 and max_loss",
        needs=SAME,
        bias="negative where the student gives the columns more than the teacher, and then held at 0 "
        "without a gradient; reverse is lowered by leaving the columns. Both are counted",
        use="to repeat a run of verl",
    )

    name: Literal["truncated_kl"] = "truncated_kl"
    direction: Literal["forward", "reverse"] = Field("forward", description="Whose mean it is.")
    min_logprob: float = Field(-10.0, lt=0, description="Logprobs of both sides count as no less.")
    max_loss: float = Field(10.0, gt=0, description="A token's loss counts as no more, nats.")


class GeneralizedKl(TeacherLossSettings):
    """The KL of unnormalised measures on the listed tokens, as MOPD and ms-swift train it."""

    told: ClassVar[LossTold] = LossTold(
        formula="reverse sum_k p_k (log p_k - log q_k) - p_k + q_k\n"
        "forward sum_k q_k (log q_k - log p_k) - q_k + p_k",
        needs=SAME,
        bias="never negative, but blind to where the mass outside of the columns goes",
        use="to repeat a run of those",
    )

    name: Literal["generalized_kl"] = "generalized_kl"
    direction: Literal["forward", "reverse"] = Field("reverse", description="Whose mean it is.")


class TeacherRenormalizedKl(TeacherLossSettings):
    """KL to a teacher that gives its columns all of its mass, as axolotl trains it."""

    told: ClassVar[LossTold] = LossTold(
        formula="sum_k q~_k (log q~_k - log p_k), q~ = q / sum q",
        needs=SAME,
        bias="pushes the student to give nothing to tokens outside of the columns",
        use="to repeat a run of those",
    )

    name: Literal["teacher_renormalized_kl"] = "teacher_renormalized_kl"
    temperature: float = Field(1.0, gt=0, description="Divides the student's logits.")


class DistillationFields(BaseModel):
    """What both the loss class and the trainer take."""

    kl_type: Literal["forward", "reverse", "mixed"] = Field("forward", description="Direction of the KL.")
    mixed_kl_weight: float = Field(0.5, ge=0, le=1, description="w of the mixed KL; read by it alone.")
    zero_outside_topk: bool = Field(False, description="Whether the student's mass elsewhere costs.")


class Distillation(TeacherLossSettings, DistillationFields):
    """NeMo RL's distillation from top-k columns, renormalised over them."""

    told: ClassVar[LossTold] = LossTold(
        formula="KL(q~ || p~), KL(p~ || q~) or a mixture, both sides divided by their mass on the columns\n"
        "zero_outside_topk: p whole, and what it has elsewhere stands against log q = -100",
        needs=SAME,
        bias="blind to how much mass lies outside of the columns; forms the logits of a whole micro-batch",
        use="to repeat a run of NeMo RL; topk_distillation is the sound form",
    )

    name: Literal["distillation"] = "distillation"


class CrossTokenizerDistillation(TeacherLossSettings, CrossTokenizerFields):
    """NeMo RL's P-KL, gold and x-token losses on the columns that were shipped."""

    told: ClassVar[LossTold] = LossTold(
        formula="P-KL: chunk means of the student's projected probabilities against the teacher's logprobs\n"
        "gold: KL over common tokens and L1 of sorted others; plus next-token CE; see "
        "docs/losses-compatibility.md",
        needs="teachers named in `teachers:`, each with another tokenizer with its projection there",
        bias="not 0 for equal models, and P-KL can be negative; dynamic_loss_scaling depends on the "
        "micro-batches. The switches of the loss class that make a step independent of its micro-batches are "
        "on here by default",
        use="to compare with NeMo RL; quotient_distillation is the sound form",
    )

    name: Literal["cross_tokenizer_distillation"] = "cross_tokenizer_distillation"
    dynamic_loss_scaling: bool = Field(
        False, description="Scale the teachers' term to the CE's size in each micro-batch, add both."
    )
    global_chunk_counts: bool = Field(True, description="Divide by the step's chunks, not a micro-batch's.")
    columns_per_row: bool = Field(
        True, description="Choose vocab_topk columns for each chunk or position, not for a whole micro-batch."
    )
    scores_per_sequence: bool = Field(
        True, description="Weigh or select teachers for each sequence, not for a whole micro-batch."
    )
    refuse_averaged_fallback: bool = Field(
        True, description="An error where averaged_logits cannot average, instead of a weighted sum."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.xtoken_loss and not self.gold_loss:
            raise ConfigError("xtoken_loss modifies the gold loss", fix="set gold_loss")
        if self.kd_loss_mode != "sum" and (self.sum_weights_metric or self.normalize_teacher_by_vocab):
            raise ConfigError(
                "sum_weights_metric and normalize_teacher_by_vocab belong to kd_loss_mode sum",
                got=self.kd_loss_mode,
            )
        return self

"""Settings of the losses that read tokens and rewards: policy gradients, likelihood, preferences."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from atroposlib.config.losses.base import LossSettings, LossTold, TeacherLossSettings
from atroposlib.config.losses.clipped_pg import ClippedPGFields
from atroposlib.config.losses.preferences import DPOFields
from atroposlib.errors import ConfigError


class PolicyGradient(TeacherLossSettings):
    """A clipped policy gradient on sampled tokens, by the teacher's word, the group's reward, or both."""

    told: ClassVar[LossTold] = LossTold(
        formula="-mean w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = p / p_sampled, w = decay^age\n"
        "A teacher: log q - log p_sampled, the reverse KL at sampled tokens; reward: the group's advantage;\n"
        "both: their sum, the reward times reward_weight",
        needs="inference_logprobs; unless advantages is reward, a teacher with the student's tokenizer, for "
        "which top-k 0 is enough",
        bias="none for the reverse KL on fresh samples without clipping; but one sampled token says little: "
        "the variance is large",
        use="when only the logprobs of the student's own tokens can be had, or to mix a task's reward in",
    )

    name: Literal["policy_gradient"] = "policy_gradient"
    advantages: Literal["reward", "teacher", "both"] = Field(
        "reward", description="What a token's advantage is made of."
    )
    reward_weight: float = Field(1.0, description="Factor on the group's advantages in both.")
    limit: float | None = Field(
        None, gt=0, description="Bound of the size of log q - log p_sampled; null for none."
    )
    clip_low: float = Field(0.2, ge=0, description="How far below 1 the ratio counts.")
    clip_high: float = Field(0.2, ge=0, description="How far above 1 the ratio counts.")
    temperature: float = Field(1.0, gt=0, description="Of the sampling; divides the student's logits.")
    staleness_decay: float = Field(
        1.0, gt=0, le=1, description="Weight of a token for each step that its sampler is behind."
    )


class KlEstimator(TeacherLossSettings):
    """An estimator of the reverse KL at the tokens that stand in the text, differentiated as it is."""

    told: ClassVar[LossTold] = LossTold(
        formula="d = log p - log q of the token: k1 = d, k2 = d^2 / 2, k3 = e^(-d) - 1 + d",
        needs="a teacher with the student's tokenizer; top-k 0 is enough",
        bias="on the student's own samples k2 has the reverse KL's gradient in expectation, k3 the forward "
        "KL's, k1 none at all but noise; on other text none of them is a KL",
        use="to repeat what others train; topk_distillation says more of each token",
    )

    name: Literal["kl_estimator"] = "kl_estimator"
    kind: Literal["k1", "k2", "k3"] = Field("k2", description="Which estimator.")
    temperature: float = Field(1.0, gt=0, description="Divides the student's logits.")


class ClippedPG(LossSettings, ClippedPGFields):
    """PPO, GRPO, RLOO, GSPO, CISPO, dual clip and truncated importance sampling, by their flags."""

    told: ClassVar[LossTold] = LossTold(
        formula="-mean min(r A, clip(r, 1 - ratio_clip_min, 1 + ratio_clip_max) A) + penalty KL(p || p_ref)\n"
        "r = p / p_old; see docs/losses-policy-gradient.md for every flag",
        needs="advantages of the group or its scores (less their mean over their deviation); "
        "inference_logprobs; with a penalty ref_logprobs, or a teacher named reference",
        bias="that of clipping; one gradient step a batch",
        use="reinforcement learning from scores, alone or beside a teacher's loss",
    )

    name: Literal["clipped_pg"] = "clipped_pg"
    old_logprobs: Literal["generation", "current"] = Field(
        "generation",
        description="Which policy the ratio is taken to: the sampler, or the student before this step.",
    )
    reference_policy_kl_penalty: float = Field(
        0.0,
        ge=0,
        description="Weight of the KL to the reference; above 0 the groups must carry its logprobs.",
    )
    positive_example_nll_over_global_tokens: bool = Field(
        True, description="Divide the NLL of positive examples by the step's tokens, not a micro-batch's."
    )

    @property
    def needs_generation(self) -> bool:
        """Whether the sampler's logprobs are read."""
        corrected = self.use_importance_sampling_correction or self.use_on_policy_kl_approximation
        ratio = self.old_logprobs == "generation" and not self.force_on_policy_ratio
        return corrected or ratio

    @property
    def needs_reference(self) -> bool:
        """Whether the reference's logprobs are read."""
        return self.reference_policy_kl_penalty > 0 and not self.use_kl_in_reward


class NLL(LossSettings):
    """Negative log likelihood of the marked tokens: supervised fine-tuning."""

    told: ClassVar[LossTold] = LossTold(
        formula="-mean log p(token)",
        needs="nothing but the tokens and their masks",
        bias="none on text of the wanted distribution; on the student's own samples it teaches nothing",
        use="on text that a teacher or a person wrote, alone or with a small weight beside a teacher's loss",
    )

    name: Literal["nll"] = "nll"


class DPO(LossSettings, DPOFields):
    """Direct preference optimization on the best and the worst sequence of each group."""

    told: ClassVar[LossTold] = LossTold(
        formula="-mean log sigmoid(beta ((log p - log p_ref)(best) - (log p - log p_ref)(worst)))\n"
        "+ sft_loss_weight NLL(best)",
        needs="groups of two or more with unequal scores; ref_logprobs, or a teacher named reference",
        bias="of each group only the best and the worst sequence are read; groups of equal scores are left "
        "out and counted",
        use="preferences rather than rewards",
    )

    name: Literal["dpo"] = "dpo"

    @model_validator(mode="after")
    def _trains_something(self) -> Self:
        if not self.preference_loss_weight and not self.sft_loss_weight:
            raise ConfigError("both terms have weight 0", fix="set one of the weights")
        return self

"""Settings of the losses that read teachers with the student's tokenizer."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from atroposlib.config.losses.base import LossTold, TeacherLossSettings


class TopKDistillation(TeacherLossSettings):
    """A divergence over the teacher's columns and one event for every other token."""

    told: ClassVar[LossTold] = LossTold(
        formula='events of a token: each id k that the teacher listed, and "any other" (the tail)\n'
        "forward  KL(q || p) = sum_k q_k (log q_k - log p_k) + q_T (log q_T - log p_T)\n"
        "reverse  KL(p || q); mixed w forward + (1 - w) reverse; jsd continuous in beta, its limits both KLs",
        needs="targets of a teacher with the student's tokenizer (top-k and the token that stands there)",
        bias="none: a lower bound of the KL over the whole vocabulary, never negative, 0 where both agree. "
        "support: renormalized does not see how much mass lies outside of the columns; zero_outside_topk "
        "takes the teacher's mass there for none",
        use="the default for a teacher with the student's tokenizer",
    )

    name: Literal["topk_distillation"] = "topk_distillation"
    divergence: Literal["forward", "reverse", "mixed", "jsd"] = Field(
        "forward", description="Which divergence of the teacher q and the student p."
    )
    support: Literal["tail", "renormalized", "zero_outside_topk"] = Field(
        "tail", description="What is done about tokens that the teacher did not list."
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="Divides the student's logits. With the tail it must be that of the teacher's logprobs.",
    )
    mixed_weight: float = Field(0.5, ge=0, le=1, description="Weight of forward in mixed.")
    beta: float = Field(0.5, ge=0, le=1, description="Of jsd: 0 is forward, 1 is reverse.")
    masked_ids: list[int] = Field(
        [], description="Token ids that count for neither side, such as markers of a template."
    )
    recompute: bool = Field(
        False, description="Compute logits a second time rather than keep the head's gradient: less memory."
    )

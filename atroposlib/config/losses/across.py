"""Settings of the losses that read teachers with another tokenizer."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from atroposlib.config.losses.base import LossTold, TeacherLossSettings
from atroposlib.errors import ConfigError


class QuotientDistillation(TeacherLossSettings):
    """KL over the outcomes that both tokenizers share, where a cut is sure, refined along the chunk."""

    told: ClassVar[LossTold] = LossTold(
        formula="outcomes at a safe cut: components of the two vocabularies, and one tail\n"
        "KL(q' || p), both sides given that a cut is there; q' is the least that the top-k can mean\n"
        "path: the observed outcome is split in this chunk and the rest of it",
        needs="a teacher with another tokenizer and a top-k of at least 1 (better 20 or more), its chunks, "
        "and both tokenizers",
        bias="none at safe cuts: a lower bound of the KL between the two text distributions. Positions that "
        "are no safe cut are not used",
        use="the default for a teacher with another tokenizer, also on the student's own samples",
    )

    name: Literal["quotient_distillation"] = "quotient_distillation"
    path: bool = Field(True, description="Split the observed outcome by the whole chunk.")
    residual_weight: float = Field(
        0.0,
        ge=0,
        description="Weight of the divergence of the chunk's rest likelihoods: 1 on text that the teacher "
        "wrote, 0 on the student's own. Takes the place of path.",
    )
    divergence: Literal["forward", "reverse", "jsd"] = Field(
        "forward", description="Which divergence of the teacher and the student."
    )
    beta: float = Field(0.5, ge=0, le=1, description="Of jsd: 0 is forward, 1 is reverse.")

    @model_validator(mode="after")
    def _one_way_to_use_the_path(self) -> Self:
        if self.residual_weight:
            if self.path and "path" in self.model_fields_set:
                raise ConfigError("the path would be learned twice", fix="leave path or residual_weight out")
            self.path = False
        return self


class ChunkLikelihood(TeacherLossSettings):
    """The likelihood that both sides give to each chunk of the text."""

    told: ClassVar[LossTold] = LossTold(
        formula="a, s: how surprised teacher and student are by a chunk, in nats\n"
        "D(a, s) = a log(a / s) - a + s, or with tau: tau KL(Bern(e^(-a/tau)) || Bern(e^(-s/tau)))\n"
        "debiased: a and s lose what only says that the last token was not longer",
        needs="a teacher with another tokenizer, its chunks, the logprobs of its own tokens, and both "
        "tokenizers; debiased needs a top-k of at least 1",
        bias="says nothing of what else could have come; without debiased also what tokenizers differ in",
        use="with top-k 0, on text that the student did not write. On the student's own samples it does harm "
        "when it is alone, and is refused there unless own_samples says otherwise",
    )

    name: Literal["chunk_likelihood"] = "chunk_likelihood"
    tau: float | None = Field(None, gt=0, description="Temperature of the binary form; null for its limit.")
    direction: Literal["forward", "reverse"] = Field(
        "forward", description="Whose surprise comes first: the teacher's (forward) or the student's."
    )
    debiased: bool = Field(
        True, description="Compare safe chunks without the bias of their ends; false compares all chunks."
    )
    own_samples: bool = Field(
        False, description="Train on the student's own samples although no other loss does."
    )

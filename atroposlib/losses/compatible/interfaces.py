"""What every loss class of this package is: its level, its input, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NoReturn, Protocol

from atroposlib.errors import LossError

Data = Mapping[str, Any]
"""One micro-batch by key; which keys a class reads stands in its data class."""


class Batch(dict[str, Any]):
    """A micro-batch that tells which key it lacks."""

    def __missing__(self, key: str) -> NoReturn:
        raise LossError("the batch lacks what the loss reads", where=key, got=sorted(self))


class LossType(Enum):
    """What a loss is a mean of, hence which global count divides its sum."""

    TOKEN_LEVEL = "token_level"  # noqa: S105  # no password: ruff reads the word "token"
    SEQUENCE_LEVEL = "sequence_level"


class LossInputType(Enum):
    """What :func:`prepare_loss_input` makes of the logits before a loss is called.

    Attributes:
        LOGIT: Nothing: ``logits`` as they are.
        LOGPROB: ``next_token_logprobs`` [B, T-1].
        DISTILLATION: ``student_topk_logprobs``, ``teacher_topk_logprobs`` [B, T-1, K] and ``H_all``.
        DISTILLATION_CROSS_TOKENIZER: ``logits``, ``student_logits_contig``, ``teacher_full_logits_by_idx``
            and ``aligns_by_idx``.
        DRAFT: ``teacher_logits``, ``student_logits`` and ``token_mask``, rolled to the token they predict.
    """

    LOGIT = "logit"
    LOGPROB = "logprob"
    DISTILLATION = "distillation"
    DISTILLATION_CROSS_TOKENIZER = "distillation_cross_tokenizer"
    DRAFT = "draft"


class LossFunction(Protocol):
    """A loss of one micro-batch, divided by counts over all micro-batches of the step.

    Attributes:
        loss_type: What the loss is a mean of.
        input_type: What it takes besides the batch.
    """

    loss_type: LossType
    input_type: LossInputType

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The loss (a scalar), and its metrics where the class has any.

        Every class takes, by name or in its own order, what ``input_type`` names and

        - ``data``: the micro-batch, a :data:`Data`;
        - ``global_valid_seqs``: sequences of the whole step, over all ranks, that are trained;
        - ``global_valid_toks``: tokens of the whole step, over all ranks, that are trained.
        """

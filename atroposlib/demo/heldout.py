"""The held-out measure: full-vocabulary KL between teacher and student on the teacher's own texts.

The teacher continues fixed held-out prompts by sampling at temperature 1, so that the mean over positions
estimates the KL of the sequence distributions KL(teacher || student), in nats per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from atroposlib.errors import UsageError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and its continuation, as token ids."""

    prompt: list[int]
    continuation: list[int]


@dataclass(frozen=True, slots=True)
class Kl:
    """Mean KL in nats per token, and over how many tokens it was taken."""

    nats_per_token: float
    tokens: int


def load_model(directory: Path, device: torch.device) -> PreTrainedModel:
    """The causal language model of a directory, in float32, ready for evaluation."""
    import torch
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, local_files_only=True
    )
    return cast("PreTrainedModel", model.to(device).eval())


def encode(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a chat, ending where the assistant's answer begins."""
    ids = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return cast("list[int]", ids)


def continue_prompts(
    model: PreTrainedModel, prompts: Sequence[list[int]], max_new_tokens: int, *, seed: int | None
) -> list[list[int]]:
    """Continue every prompt up to and with the end token, or ``max_new_tokens``.

    Args:
        model: The model that writes.
        prompts: Token ids of each prompt.
        max_new_tokens: Longest continuation.
        seed: Seed of sampling at temperature 1 from the whole vocabulary; None takes the likeliest token.
    """
    import torch

    ends = end_ids(model)
    width = max(map(len, prompts))
    # Padding on the left puts every prompt's last token at the same position; the mask hides its value.
    ids = torch.tensor([[ends[0]] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    how: dict[str, Any] = {"do_sample": False}
    if seed is not None:
        torch.manual_seed(seed)
        how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    with torch.inference_mode():
        out = model.generate(  # type: ignore[operator]  # a mixin that transformers' types hide
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max_new_tokens,
            pad_token_id=ends[0],
            eos_token_id=ends,
            **how,
        )
    return [_until_end(row, ends) for row in out[:, width:].tolist()]


def logprobs(model: PreTrainedModel, text: Text) -> torch.Tensor:
    """Log-probabilities, float32 [T, V] in nats, over the vocabulary at each of the T continuation tokens."""
    import torch

    ids = torch.tensor([text.prompt + text.continuation], device=model.device)
    kept = len(text.continuation) + 1
    with torch.inference_mode():
        logits = model(input_ids=ids, logits_to_keep=kept).logits[0, :-1]
    return torch.log_softmax(logits.float(), dim=-1)


class SameVocabulary:
    """The measure of a student that has its teacher's tokenizer.

    Args:
        teacher: The teacher.
        texts: Prompts, and what the teacher wrote behind them.
    """

    def __init__(self, teacher: PreTrainedModel, texts: Sequence[Text]) -> None:
        self._texts = texts
        self._teacher = [logprobs(teacher, text) for text in texts]

    def of(self, student: PreTrainedModel) -> dict[str, Any]:
        """``kl`` of a student in nats per token, and the ``tokens`` it is the mean of.

        Raises:
            UsageError: The vocabularies are of different sizes (``usage.model``).
        """
        kl = mean_kl(self._teacher, student, self._texts)
        return {"kl": kl.nats_per_token, "tokens": kl.tokens}


def mean_kl(teacher: Sequence[torch.Tensor], student: PreTrainedModel, texts: Sequence[Text]) -> Kl:
    """KL(teacher || student) over the whole vocabulary, mean over the continuation tokens of all texts.

    Args:
        teacher: The teacher's log-probabilities of each text, float32 [T, V].
        student: The model to compare.
        texts: What both models read.

    Raises:
        UsageError: The vocabularies are of different sizes.
    """
    import torch

    total, tokens = 0.0, 0
    for theirs, text in zip(teacher, texts, strict=True):
        ours = logprobs(student, text)
        if ours.shape != theirs.shape:
            raise UsageError(
                "teacher and student must have the same vocabulary",
                code="usage.model",
                got=f"a student of {ours.shape[-1]} token ids",
                expected=f"{theirs.shape[-1]}",
            )
        total += (theirs.exp() * (theirs - ours)).sum(dtype=torch.float64).item()
        tokens += len(text.continuation)
    return Kl(total / tokens, tokens)


def end_ids(model: PreTrainedModel) -> list[int]:
    """The tokens that end a model's text. Raises UsageError where it names none (``usage.model``)."""
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    if ends is None:
        raise UsageError("the model names no end token", code="usage.model", expected="eos_token_id")
    return [ends] if isinstance(ends, int) else list(ends)


def _until_end(ids: list[int], ends: list[int]) -> list[int]:
    for position, token in enumerate(ids):
        if token in ends:
            return ids[: position + 1]
    return ids

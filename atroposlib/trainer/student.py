"""Loads the student and computes the losses of a run in its forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from atroposlib.collate.batch import Batch
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import UsageError
from atroposlib.trainer.heads import head_layer, head_of, hidden_states, require_known_head
from atroposlib.trainer.terms.build import build_terms
from atroposlib.trainer.terms.term import StepCount, Term, TermLoss


class StudentWithLoss(nn.Module):
    """A causal language model and its losses in one forward pass, so that wrappers see a single root.

    Args:
        model: The model; its weights are float32 whatever the arithmetic.
        terms: The losses.
        autocast: Type of the forward arithmetic; None for that of the weights.
    """

    def __init__(self, model: PreTrainedModel, terms: Sequence[Term], autocast: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        self.terms = terms
        self.autocast = autocast

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return head_layer(self.model).out_features

    def forward(self, batch: Batch, counts: Sequence[StepCount]) -> tuple[Tensor, list[TermLoss]]:
        """The weighted sum of all losses of a micro-batch, and each alone.

        Args:
            batch: The micro-batch.
            counts: For each term what its sum over the whole step is divided by.
        """
        with torch.autocast(
            batch.input_ids.device.type, dtype=self.autocast, enabled=self.autocast is not None
        ):
            states = hidden_states(self.model, batch.input_ids).flatten(0, 1)
        head = head_of(self.model, self.autocast)
        states = states.to(head.weight.dtype)
        said = [
            loss
            for term, count in zip(self.terms, counts, strict=True)
            if count.units
            for loss in term.losses(states, head, batch, count)
        ]
        # Connected to all that is trained, also where a micro-batch has nothing to learn.
        total = (states[:1].sum() + head.weight[:1].sum()).float() * 0.0
        for one in said:
            total = total + one.weight * one.loss
        return total, said


def load_student(directory: Path, settings: TrainerSettings) -> StudentWithLoss:
    """The model in ``directory`` with float32 weights on the chosen device.

    Raises:
        UsageError: It cannot be loaded, the device does not exist, or the model changes the output of its
            head in a way that the losses do not repeat.
    """
    device = choose_device(settings.device)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # has no annotations
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise UsageError(
            "the model cannot be loaded", code="usage.model", where=str(directory), got=first_line
        ) from error
    require_known_head(model)
    model.to(device)  # type: ignore[arg-type]  # transformers wraps Module.to without its overloads
    model.train()
    terms = build_terms(settings, head_layer(model).out_features)
    return StudentWithLoss(model, terms, autocast_dtype(settings.dtype, device))


def choose_device(name: str) -> torch.device:
    """The device that ``name`` means on this machine. Raises UsageError when it has none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError("no such device", where="device", got=name, fix="use device: auto or cpu")
    return device


def autocast_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Type of the forward arithmetic, or None for that of the float32 weights."""
    bfloat16 = name == "bfloat16" or (name == "auto" and device.type == "cuda")
    return torch.bfloat16 if bfloat16 else None

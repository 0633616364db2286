"""Loads the student and computes its loss at the positions that have a target, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from atroposlib.collate.batch import Batch
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import UsageError
from atroposlib.losses.topk_distillation import Metrics, topk_distillation_from_logits

LOSSES = {"topk_distillation": topk_distillation_from_logits}


class StudentWithLoss(nn.Module):
    """A causal language model and its loss in one forward pass, so that wrappers see a single root.

    Args:
        model: The model; its weights are float32 whatever the arithmetic.
        loss: Key of :data:`LOSSES`.
        autocast: Type of the forward arithmetic; None for that of the weights.
    """

    def __init__(self, model: PreTrainedModel, loss: str, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        self._loss = LOSSES[loss]
        self.autocast = autocast

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return _head(self.model).out_features

    def forward(self, batch: Batch, global_count: int) -> tuple[Tensor, Metrics]:
        """Loss of a micro-batch as its share of the step's mean (see the loss function), and its sums."""
        with torch.autocast(
            batch.input_ids.device.type, dtype=self.autocast, enabled=self.autocast is not None
        ):
            logits = logits_at(self.model, batch.input_ids, batch.positions)
        return self._loss(logits, batch.target_ids, batch.target_logprobs, global_count=global_count)


def logits_at(model: PreTrainedModel, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Logits [N, V] at flat positions [N] of right-padded ids [B, T].

    No attention mask: padding stands on the right of a causal model, where no real token sees it, and
    without a mask the attention takes its fast path.
    """
    hidden: Tensor = model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
    logits: Tensor = _head(model)(hidden.flatten(0, 1)[positions])
    return logits


def _head(model: PreTrainedModel) -> nn.Linear:
    head: nn.Linear = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # has no annotations
    return head


def load_student(directory: Path, settings: TrainerSettings) -> StudentWithLoss:
    """The model in ``directory`` with float32 weights on the chosen device.

    Raises:
        UsageError: It cannot be loaded, the device does not exist, or the model changes the output of its
            head in a way that the trainer does not repeat.
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
    _refuse_transformed_logits(model, directory)
    model.to(device)  # type: ignore[arg-type]  # transformers wraps Module.to without its overloads
    model.train()
    return StudentWithLoss(model, settings.loss.name, autocast_dtype(settings.dtype, device))


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


@torch.no_grad()
def _refuse_transformed_logits(model: PreTrainedModel, directory: Path) -> None:
    """Compare head(backbone) with the model's own logits: soft-capping or a scale would show here."""
    ids = torch.arange(8).reshape(1, 8) % model.config.get_text_config().vocab_size
    own: Tensor = model.train(False)(input_ids=ids, use_cache=False).logits[0]
    if not torch.allclose(logits_at(model, ids, torch.arange(8)), own, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise UsageError(
            "the model changes the output of its head (soft-capping or a scale), which is not supported",
            code="usage.model",
            where=str(directory),
        )

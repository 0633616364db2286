"""The student: its lower blocks are frozen and their activations kept, so that only the upper ones run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from atroposlib.demo import heldout
from atroposlib.losses.head import Head
from study.pairs import Item

UPPER = 8
"""Blocks that are trained, with the norm behind them; the head is frozen."""
BETAS = (0.9, 0.99)
WARM_UP = 3
LAST_RATE = 0.3


class Student:
    """The upper blocks of a Llama-like model, and what the lower ones gave for each text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.upper: Any = None
        self.head = Head(torch.empty(0))
        self.reset()

    def reset(self) -> None:
        """Back to the weights of the file."""
        model: Any = heldout.load_model(self._directory, torch.device("cpu"))
        self.upper = model.model
        self.upper.layers = self.upper.layers[-UPPER:]
        for number, layer in enumerate(self.upper.layers):
            layer.self_attn.layer_idx = number
        self.upper.config.num_hidden_layers = UPPER
        self.head = Head(model.lm_head.weight.detach())
        for name, weight in self.upper.named_parameters():
            weight.requires_grad_(not name.startswith("embed_tokens"))

    def activations(self, items: Sequence[Item]) -> list[Tensor]:
        """float32 [T, H] of each text: what the lower blocks give to the upper ones."""
        model: Any = heldout.load_model(self._directory, torch.device("cpu")).model
        model.layers = model.layers[:-UPPER]
        model.config.num_hidden_layers = len(model.layers)
        model.norm = nn.Identity()
        with torch.inference_mode():
            return [self._run(model, input_ids=torch.from_numpy(item.student_ids)[None])[0] for item in items]

    def hidden(self, activations: Sequence[Tensor]) -> Tensor:
        """float32 [B, T, H] behind the final norm; what is behind the end of a text means nothing."""
        return self._run(self.upper, inputs_embeds=pad_sequence(list(activations), batch_first=True))

    def optimizer(self, rate: float, steps: int) -> tuple[torch.optim.Optimizer, Any]:
        """AdamW without decay, and its schedule: a short warm-up, then a line."""
        weights: Iterable[Tensor] = [weight for weight in self.upper.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(weights, lr=rate, betas=BETAS, weight_decay=0.0)

        def factor(step: int) -> float:
            begun = min(1.0, (step + 1) / WARM_UP)
            return begun * (1 - (1 - LAST_RATE) * step / max(1, steps - 1))

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    @staticmethod
    def _run(model: Any, **inputs: Tensor) -> Tensor:
        # Texts are padded at their end, where a causal model's earlier positions do not look.
        found: Tensor = model(**inputs, use_cache=False).last_hidden_state
        return found

"""Batches for the cross-tokenizer class: recorded ones, their parts, and teachers as servers ship them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.compatible.cross_tokenizer import CrossTokenizerDistillationLossFn
from atroposlib.losses.compatible.prepare import prepare_loss_input
from tests.support.loss_values import Loaded, copied, load
from tests.support.projections import written

Batch = dict[str, Any]
Result = tuple[Tensor, dict[str, Any]]


def recorded(name: str, dtype: torch.dtype = torch.float64) -> Loaded:
    """One recorded case of the copy by name."""
    return load(copied(name), dtype)


def loss_of(loaded: Loaded, folder: Path, **changed: Any) -> CrossTokenizerDistillationLossFn:
    """The class with a case's settings, some of them changed."""
    config = dict(loaded.config)
    config["projection_matrix_paths"] = [
        None if arrays is None else written(arrays, folder / f"projection_{i}")
        for i, arrays in enumerate(config.pop("projections"))
    ]
    return CrossTokenizerDistillationLossFn(config | changed)


def called(
    loss_fn: CrossTokenizerDistillationLossFn, loaded: Loaded, batch: Batch | None = None, rows: Any = None
) -> Result:
    """Loss and metrics of a case, or of another batch, or of some rows of it, with the case's counts."""
    batch = loaded.call["data"] if batch is None else batch
    logits = loaded.call["logits"]
    if rows is not None:
        batch = {name: value[rows] if value.dim() else value for name, value in batch.items()}
        logits = logits[rows]
    return loss_fn(
        data=batch,
        global_valid_seqs=loaded.call["global_valid_seqs"],
        global_valid_toks=loaded.call["global_valid_toks"],
        **prepare_loss_input(logits, batch, loss_fn),
    )


def gradient(loss: Tensor, loaded: Loaded) -> Tensor:
    """Of a loss, with respect to the case's logits."""
    (found,) = torch.autograd.grad(loss, loaded.call["logits"], retain_graph=True)
    return found


def shipped(batch: Batch, i: int, k: int) -> Batch:
    """The batch with teacher ``i`` as a server ships it: its k best ids a row, and row p of token p."""
    logprobs = batch[f"teacher_{i}_full_logits_ipc"].log_softmax(-1)
    best = logprobs.topk(min(k, logprobs.shape[-1]), -1)
    # In another order than by id: nothing may depend on it.
    ids, values = best.indices.flip(-1), best.values.flip(-1)
    first = torch.full_like(ids[:, :1], -1)
    rest = {name: value for name, value in batch.items() if name != f"teacher_{i}_full_logits_ipc"}
    return rest | {
        f"teacher_{i}_topk_ids": torch.cat([first, ids[:, :-1]], 1),
        f"teacher_{i}_topk_logprobs": torch.cat([first * torch.inf, values[:, :-1]], 1),
    }

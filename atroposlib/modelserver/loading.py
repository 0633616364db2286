"""Load a model and its tokenizer, and load new weights into a model that is running."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atroposlib.config.modelserver import ModelServerSettings
from atroposlib.errors import UsageError
from atroposlib.modelserver.attention import register
from atroposlib.modelserver.source import check_source

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOAD_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run, and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


def resolve_device(name: str) -> torch.device:
    """The device that the setting ``name`` means here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            "there is no such device here", where="device", got=name, fix="use --device cpu or auto"
        )
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype that the setting ``name`` means on ``device``."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def load(settings: ModelServerSettings) -> Loaded:
    """Load model and tokenizer; raises UsageError ``usage.model`` for anything that cannot be served."""
    from transformers import AutoModelForCausalLM

    device = resolve_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    check_source(settings.model)
    _quiet_transformers()
    try:
        tokenizer = load_tokenizer(settings.model)
        model, report = _load_weights(AutoModelForCausalLM, settings.model, dtype)
    except LOAD_ERRORS as error:
        raise _cannot_load(settings.model, error) from error
    _check_keys(settings.model, report)
    torch.nn.Module.to(model, device)
    model.requires_grad_(False)
    return Loaded(model, tokenizer)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of ``source`` exactly as its tokenizer.json says.

    AutoTokenizer rebuilds some tokenizers from their declared class and then gives other ids.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(source)
    except (OSError, ValueError):
        # No tokenizer.json, such as a SentencePiece model alone: only the declared class can convert it.
        tokenizer = AutoTokenizer.from_pretrained(source)
        if not tokenizer.is_fast:
            raise ValueError("its tokenizer has no tokenizer.json and cannot be converted to one") from None
    return tokenizer


def reload_weights(model: PreTrainedModel, path: str) -> None:
    """Copy the weights in directory ``path`` into ``model``, all or nothing.

    Raises:
        ValueError: ``path`` is no directory of safetensors that fits the model in names and shapes.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ValueError(f"no such directory: {path}")
    try:
        # The running model's class and configs, so that a directory of weights alone is enough.
        configs = {"config": model.config, "generation_config": model.generation_config}
        fresh, report = _load_weights(type(model), path, model.dtype, **copy.deepcopy(configs))
    except LOAD_ERRORS as error:
        raise ValueError(f"cannot load the weights in {path}: {_first_line(error)}") from error
    if wrong := _wrong_keys(report, "missing", "unexpected", "mismatched"):
        raise ValueError(f"the weights in {path} do not fit the model: {wrong}")
    with torch.no_grad():
        for mine, theirs in zip(_tensors(model), _tensors(fresh), strict=True):
            mine.copy_(theirs)


def _tensors(model: PreTrainedModel) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _load_weights(
    loader: Any, source: str, dtype: torch.dtype, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    model, report = loader.from_pretrained(
        source,
        dtype=dtype,
        attn_implementation=register(),
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    return model, report


def _wrong_keys(report: dict[str, Any], *kinds: str) -> str:
    """The keys of these kinds that a load reports, in words; empty when there are none."""
    found = {kind: sorted(map(str, report.get(f"{kind}_keys") or ())) for kind in kinds}
    return "; ".join(f"{len(keys)} {kind}, such as {keys[0]}" for kind, keys in found.items() if keys)


def _check_keys(source: str, report: dict[str, Any]) -> None:
    if wrong := _wrong_keys(report, "missing", "mismatched"):
        raise UsageError(
            f"the weights do not fit the model's config.json: {wrong}", code="usage.model", where=source
        )


def _cannot_load(source: str, error: Exception) -> UsageError:
    return UsageError(
        f"cannot load the model: {_first_line(error)}",
        code="usage.model",
        where=source,
        fix="give a directory with config.json, tokenizer.json and *.safetensors, or a hub id in reach",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


def _quiet_transformers() -> None:
    from transformers.utils import logging

    hub: Any = logging
    hub.set_verbosity_error()
    hub.disable_progress_bar()

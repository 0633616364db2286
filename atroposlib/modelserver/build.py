"""Put the served model together from the settings: weights, tokenizer, limits, worker."""

from __future__ import annotations

import random
from typing import Any

from transformers import PreTrainedModel

from atroposlib.config.modelserver import ModelServerSettings
from atroposlib.errors import ConfigError
from atroposlib.modelserver.admission import BatchLimits
from atroposlib.modelserver.engine import Engine
from atroposlib.modelserver.loading import load, reload_weights
from atroposlib.modelserver.scheduler import Scheduler
from atroposlib.modelserver.served import ServedModel
from atroposlib.modelserver.text import TextCodec
from atroposlib.modelserver.work import EndTokens

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p")


def build_model(settings: ModelServerSettings) -> ServedModel:
    """Load the model that ``settings`` name; its worker is not started yet.

    Raises:
        UsageError: The model cannot be loaded or served.
        ConfigError: ``max_model_len`` is more than the model has positions for.
    """
    loaded = load(settings)
    codec = TextCodec(loaded.tokenizer)
    engine = Engine(
        loaded.model, end_tokens(loaded.model, codec), longest(loaded.model, settings.max_model_len)
    )
    limits = BatchLimits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_cached_tokens=settings.max_cached_tokens,
        batch_wait_s=settings.batch_wait_ms / 1000,
    )
    return ServedModel(
        name=settings.served_model_name or settings.model,
        codec=codec,
        scheduler=Scheduler(engine, limits),
        max_model_len=engine.max_model_len,
        max_logprobs=settings.max_logprobs,
        vocab_size=engine.vocab_size,
        weights_path=settings.model,
        reload=lambda path: reload_weights(loaded.model, path),
        defaults=sampling_defaults(loaded.model),
        seeds=random.Random(settings.seed),
    )


def describe(settings: ModelServerSettings, model: ServedModel) -> str:
    """What is served, in one line without an address."""
    engine_model = model.scheduler.engine.model
    dtype = str(engine_model.dtype).removeprefix("torch.")
    return f"model-server: {model.name} from {settings.model} ({engine_model.device}, {dtype})"


def longest(model: PreTrainedModel, wanted: int | None) -> int:
    """Longest sequence in tokens: ``wanted``, within what the model has positions for."""
    config = model.config.get_text_config(decoder=True)
    own: int | None = getattr(config, "max_position_embeddings", None)
    if own is None and wanted is None:
        raise ConfigError(
            "the model's config.json names no longest sequence", where="max_model_len", fix="give one"
        )
    if own is not None and wanted is not None and wanted > own:
        raise ConfigError(
            "longer than the model has positions for",
            where="max_model_len",
            got=wanted,
            expected=f"at most {own}",
        )
    return wanted or own or 0


def end_tokens(model: PreTrainedModel, codec: TextCodec) -> EndTokens:
    """The tokenizer's end token, and those that only the generation config names."""
    named: Any = getattr(model.generation_config, "eos_token_id", None)
    ids = frozenset([named] if isinstance(named, int) else named or ())
    return EndTokens(codec.eos_token_id, ids - {codec.eos_token_id})


def sampling_defaults(model: PreTrainedModel) -> dict[str, Any]:
    """Sampling values of the model's generation config; requests without their own get them, as in vLLM."""
    config = model.generation_config.to_diff_dict() if model.generation_config else {}
    return {name: config[name] for name in SAMPLING_DEFAULTS if config.get(name) is not None}

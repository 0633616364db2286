"""Loads a server's tokenizer by name."""

from __future__ import annotations

import asyncio
from typing import Any

from atroposlib.config.server import APIServerConfig
from atroposlib.errors import UsageError


async def load_tokenizer(config: APIServerConfig) -> Any:
    """The Hugging Face tokenizer that ``config`` names; loaded in a thread, since it takes seconds.

    Raises:
        UsageError: usage.model when it cannot be loaded.
    """
    named = config.tokenizer_name not in ("", "none")
    name = config.tokenizer_name if named else config.model_name
    try:
        return await asyncio.to_thread(_load, name)
    except (OSError, ValueError) as failure:
        raise UsageError(
            "the tokenizer cannot be loaded",
            code="usage.model",
            where="tokenizer_name" if named else "model_name",
            got=name,
            expected="a model directory or hub id",
        ) from failure


def _load(name: str) -> Any:
    # Imported here because transformers takes seconds, and most environments bring their own tokenizer.
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)

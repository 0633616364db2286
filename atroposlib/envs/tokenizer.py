"""Loading of a tokenizer by hub id or directory, without torch where that gives the same tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atroposlib.envs.telling import first_line
from atroposlib.errors import UsageError

PLAIN_CLASS = "PreTrainedTokenizerFast"


def read_tokenizer(name: str) -> Any:
    """The tokenizer of a hub id or directory. Raises OSError or ValueError as transformers does."""
    if _declares_plain_class(Path(name)):
        # AutoTokenizer would import torch (6 s) and then make the same object.
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(name)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name, use_fast=True)


def load_tokenizer(
    name: str, where: str = "env.tokenizer_name", read: Callable[[str], Any] = read_tokenizer
) -> Any:
    """The tokenizer of a hub id or directory, as ``read`` reads it.

    Raises:
        UsageError: It cannot be loaded; ``where`` names the setting that names it.
    """
    try:
        return read(name)
    except (OSError, ValueError) as error:
        raise UsageError(
            "the tokenizer cannot be loaded",
            code="usage.model",
            where=where,
            got=f"{name!r}: {first_line(error)}",
            fix="give a hub id or a directory with tokenizer.json",
        ) from error


def _declares_plain_class(directory: Path) -> bool:
    config = directory / "tokenizer_config.json"
    if not config.is_file():
        return False
    declared: Any = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class")
    return bool(declared == PLAIN_CLASS)

"""One side of a collator, the student or a teacher: its tokenizer, checked, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atroposlib.align.tables.table import Vocabulary
from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.collate.cross_tokenizer.config import CrossTokenizerCollatorConfig
from atroposlib.collate.cross_tokenizer.conversation import probe, read_conversation
from atroposlib.collate.cross_tokenizer.rows import placed
from atroposlib.errors import ConfigError


@dataclass(frozen=True, eq=False, slots=True)
class Side:
    """What a model's rows are made with.

    Attributes:
        name: How errors call it.
        tokenizer: A fast tokenizer of transformers that pads on the right.
        ctx_length: Most tokens of a row.
        divisor: Rows are padded to a multiple of this.
        vocabulary: The byte table.
        encoder: For conversations; None in text mode.
    """

    name: str
    tokenizer: Any
    ctx_length: int
    divisor: int
    vocabulary: Vocabulary
    encoder: TextEncoder | None


def open_side(
    name: str, tokenizer: Any, ctx_length: int, divisor: int, config: CrossTokenizerCollatorConfig
) -> Side:
    """A side whose tokenizer and chat template can do what the mode needs.

    Raises:
        ConfigError: The tokenizer is missing, slow, without a template or a padding token, or one that a byte
            table cannot represent.
        AlignError: The chat template cannot be supervised in this mode (``align.template``).
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            "the collator needs a fast tokenizer",
            code="align.unsupported",
            where=name,
            got=type(tokenizer).__name__,
            fix="load it with use_fast=True; only a teacher without an aligner may have None",
        )
    vocabulary = vocabulary_of(tokenizer)
    encoder = None
    if config.mode == "chat":
        encoder = TextEncoder(tokenizer, vocabulary)
        with placed(f"{name}, chat template"):
            read_conversation(tokenizer, encoder, probe(config), config)
    _pad_on_the_right(tokenizer, name)
    return Side(name, tokenizer, ctx_length, divisor, vocabulary, encoder)


def _pad_on_the_right(tokenizer: Any, name: str) -> None:
    """Whoever pads with this tokenizer later pads as the collator does."""
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ConfigError("the tokenizer has neither a padding nor an end token", where=name)
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"

"""Raw texts in one tokenizer's ids, and the limits that they must keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.collate.cross_tokenizer.rows import place
from atroposlib.collate.cross_tokenizer.tensors import padded_width
from atroposlib.errors import AlignError

Offsets = list[tuple[int, int]]


def encode_texts(
    texts: Sequence[str], tokenizer: Any, *, add_special_tokens: bool
) -> list[tuple[list[int], Offsets]]:
    """Each text whole: its ids, and where each token lies in it in characters.

    Special tokens that are written out in a text are letters like any other, so that they mean the same to
    every tokenizer.

    Args:
        texts: Each on its own.
        tokenizer: A fast tokenizer of transformers.
        add_special_tokens: Whether the tokenizer's own special tokens are put around each text; they lie at
            ``(0, 0)``.
    """
    if not texts:
        return []
    encoded = tokenizer(
        list(texts),
        add_special_tokens=add_special_tokens,
        split_special_tokens=True,
        truncation=False,
        return_offsets_mapping=True,
        # It would warn of the model's greatest length, which is not ours.
        verbose=False,
    )
    return list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))


def refuse_overlength(
    lengths: Sequence[int], idx: Sequence[Any], ctx_length: int, side: str, divisor: int = 1
) -> None:
    """Refuse rows that need more positions than a context has.

    Args:
        lengths: Tokens of each row.
        idx: How errors name each row.
        ctx_length: Positions that the context has.
        side: Whose context it is.
        divisor: A row needs its length rounded up to a multiple of this.

    Raises:
        AlignError: One is too long (``align.overlength``).
    """
    for length, number in zip(lengths, idx, strict=True):
        needed = padded_width(length, divisor)
        if needed > ctx_length:
            padding = f", {needed} with padding to a multiple of {divisor}" if needed > length else ""
            raise AlignError(
                "the row is longer than the context",
                code="align.overlength",
                where=place(side, number),
                got=f"{length} tokens{padding}",
                expected=f"at most {ctx_length}",
                fix="leave the row out of the data, or raise the context length",
            )

"""Tokenizes a finished chat for the trainer, for environments that only kept its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.types import IGNORED

TRAINED_ROLES = ("assistant", "agent")


def tokenize_for_trainer(
    tokenizer: Any,
    chat: Sequence[Mapping[str, Any]],
    include_messages: bool = False,
    train_on_all_assistant_turns: bool = False,
    finish_reason: str = "",
) -> dict[str, Any]:
    """The ids and masks of ``chat`` under the tokenizer's chat template.

    The ids are those of the text, not those that were sampled; ``managed_server`` keeps the sampled ones.

    Args:
        tokenizer: A Hugging Face tokenizer with a chat template.
        chat: The messages; the last one is trained.
        include_messages: Return ``chat`` as ``messages`` too.
        train_on_all_assistant_turns: Train every assistant (or agent) message, not the last message alone.
        finish_reason: Of the last message. After "length" its end of turn is left out: none was sampled.

    Returns:
        ``tokens`` [T] and ``masks`` [T] (-100 where untrained, else the token id).
    """
    chat = list(chat)
    tokens = _ids(tokenizer, chat, reply_follows=False)
    if train_on_all_assistant_turns:
        trained = [index for index, message in enumerate(chat) if message["role"] in TRAINED_ROLES]
    else:
        trained = [len(chat) - 1]
    masks = [IGNORED] * len(tokens)
    start = 0
    for index in trained:
        start = _shared(tokens, _ids(tokenizer, chat[:index], reply_follows=True))
        end = _shared(tokens, _ids(tokenizer, chat[: index + 1], reply_follows=False))
        masks[start:end] = tokens[start:end]
    if finish_reason == "length" and tokenizer.eos_token_id in tokens[start:]:
        end = len(tokens) - 1 - tokens[::-1].index(tokenizer.eos_token_id)
        tokens, masks = tokens[:end], masks[:end]
    return {"tokens": tokens, "masks": masks, **({"messages": chat} if include_messages else {})}


def _ids(tokenizer: Any, chat: Sequence[Mapping[str, Any]], *, reply_follows: bool) -> list[int]:
    if not chat:
        return []
    # Rendered to text first: what apply_chat_template returns for ids differs between transformers 4 and 5.
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=reply_follows)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    return next(
        (index for index, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )

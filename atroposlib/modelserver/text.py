"""Between text and token ids: encoding, chat templates, decoding as tokens come, the text of single tokens.

Everything but the chat template goes to the Rust tokenizer, which may be read from several threads at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
CONTEXT = 4
"""A character has at most four bytes, so at most three tokens before one can belong to its character."""


class TextCodec:
    """The tokenizer of the served model."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.source: str = tokenizer.name_or_path
        self._backend: Any = tokenizer._tokenizer
        self._backend.no_padding()
        self._backend.no_truncation()
        self._texts: dict[int, str] = {}
        anchor = self._backend.encode("a", add_special_tokens=False).ids[-1:]
        self._anchor: list[int] = anchor
        self._anchor_text = self.decode(anchor)
        self.eos_token_id: int | None = tokenizer.eos_token_id
        self.size: int = self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of ``text``."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of ``ids``."""
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def pieces(self, ids: list[int]) -> list[str]:
        """The vocabulary's own strings of ``ids``, not decoded."""
        return [self._backend.id_to_token(token_id) for token_id in ids]

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        generation_prompt: bool,
        continue_final: bool,
        **template: Any,
    ) -> str:
        """The chat template applied to ``messages``; whatever the template raises goes through."""
        text = self._tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            continue_final_message=continue_final,
            **template,
        )
        if not isinstance(text, str):
            raise TypeError("the chat template gave no text")
        return text

    def token_text(self, token_id: int, before: list[int]) -> str:
        """The text that ``token_id`` adds after the ids ``before``.

        A token that ends a character started by earlier tokens is given the whole character, and one that
        leaves a character unfinished the empty text, so the texts of a sequence's tokens join to its text.
        """
        text = self._texts.get(token_id)
        if text is None:
            # Decoded behind an ordinary token, since some decoders drop the first token's leading space.
            joined = self.decode([*self._anchor, token_id])
            text = joined.removeprefix(self._anchor_text)
            self._texts[token_id] = text
        return text if not text.endswith(REPLACEMENT) else self._completed_text(token_id, before)

    def _completed_text(self, token_id: int, before: list[int]) -> str:
        unfinished = 0
        while unfinished < min(CONTEXT, len(before)):
            unfinished += 1
            joined = self.decode([*self._anchor, *before[-unfinished:], token_id])
            if not joined.endswith(REPLACEMENT):
                return joined.removeprefix(self._anchor_text)
        return ""

    def stream(self, prompt_ids: list[int], *, skip_special_tokens: bool) -> TextStream:
        """A decoder of the tokens that follow ``prompt_ids``."""
        return TextStream(self._backend, prompt_ids, skip_special_tokens)


class TextStream:
    """Decodes one sequence token by token; a character is given out with the token that completes it."""

    def __init__(self, backend: Any, prompt_ids: list[int], skip_special_tokens: bool) -> None:
        self._backend = backend
        self._skip_special_tokens = skip_special_tokens
        self._stream = self._after(prompt_ids)

    def _after(self, ids: list[int]) -> Any:
        from tokenizers import decoders

        return decoders.DecodeStream(ids=ids, skip_special_tokens=self._skip_special_tokens)

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes, which may be empty."""
        try:
            text: str | None = self._stream.step(self._backend, token_id)
        except Exception:  # noqa: BLE001 - tokenizers raises a bare Exception where bytes form no prefix of a text
            self._stream = self._after([])
            text = self._stream.step(self._backend, token_id)
        return text or ""

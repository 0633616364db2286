"""From a row in chat mode to its document: what is read of it, what is refused, what is supervised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atroposlib.align.views.encoding import TextEncoder
from atroposlib.collate.cross_tokenizer.config import CrossTokenizerCollatorConfig
from atroposlib.collate.cross_tokenizer.document import RenderedChatDocument, render_document
from atroposlib.collate.cross_tokenizer.native import render_native_document
from atroposlib.collate.cross_tokenizer.rows import Row, is_supervised, messages_of


def read_conversation(
    tokenizer: Any, encoder: TextEncoder, row: Row, config: CrossTokenizerCollatorConfig
) -> RenderedChatDocument:
    """The document of a row.

    Raises:
        AlignError: A row or a chat template that cannot be supervised.
    """
    native = config.native_thinking_alignment
    messages, tools = messages_of(row, reasoning_apart=native), row.get("tools")
    if native:
        document = render_native_document(tokenizer, encoder, messages, tools=tools)
    else:
        document = render_document(
            tokenizer, encoder, messages, tools=tools, include_thinking=config.include_thinking_in_loss
        )
    return document if is_supervised(row, messages) else replace(document, regions={})


def probe(config: CrossTokenizerCollatorConfig) -> Row:
    """A row by which to see whether a chat template can be used at all."""
    answer = {"role": "assistant", "content": "Therefore."}
    if config.native_thinking_alignment:
        answer["reasoning_content"] = "Because."
    return {"message_log": [{"role": "user", "content": "Why?"}, answer]}

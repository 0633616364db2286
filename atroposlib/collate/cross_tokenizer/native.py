"""The four regions of an answer in ChatML with reasoning: reasoning, closing marker, answer, end of turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.rendering import Piece, Rendering, encode_rendering, refuse_hidden_markers, render
from atroposlib.collate.cross_tokenizer.document import EOT, RenderedChatDocument, Span, document
from atroposlib.errors import AlignError

_REASONING = "reasoning_content"
_OPENER, _CLOSER = "<think>", "</think>"
_HEADER, _END = "<|im_start|>assistant\n", "<|im_end|>"
_FILLER = "\ue000"
# Reasoning that is there, or the empty one that a template writes for an answer without.
_OPENING = re.compile(rf"\s*(?:{_OPENER}\s*(?P<reasoning>{_FILLER}+)?\s*(?P<close>{_CLOSER})\s*)?")


def render_native_document(
    tokenizer: Any, encoder: TextEncoder, messages: list[dict[str, Any]], *, tools: Sequence[Any] | None
) -> RenderedChatDocument:
    """A conversation with up to four regions of its last answer; tool calls belong to the answer.

    Args:
        tokenizer: Whose chat template renders it.
        encoder: Encodes for the same tokenizer.
        messages: The last is the answer. Reasoning is its ``reasoning_content``, or a ``<think>`` block
            at the begin of its content.
        tools: The tools that the template describes.

    Raises:
        AlignError: A template of another layout or one that leaves the reasoning out (``align.template``), or
            that changes the answer, or a marker that is only said (``align.content``).
    """
    messages = [*messages[:-1], _taken_apart(messages[-1])]
    rendering = _render(tokenizer, messages, tools)
    # Where the last reasoning stands is known.
    told = [*messages[:-1], {name: value for name, value in messages[-1].items() if name != _REASONING}]
    refuse_hidden_markers(encoder, told, rendering, tools=tools)
    places = _places(_shadow(rendering), messages[-1])
    regions = {name: _in_bytes(rendering.text, span) for name, span in places.items()}
    return document(rendering, encode_rendering(encoder, rendering), regions)


def _taken_apart(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning in ``reasoning_content``, both without white space around them."""
    reasoning = (message.get(_REASONING) or "").strip()
    content = (message.get("content") or "").strip()
    if not reasoning and content.startswith(_OPENER) and _CLOSER in content:
        reasoning, _, content = content.removeprefix(_OPENER).partition(_CLOSER)
        reasoning, content = reasoning.strip(), content.strip()
    rest = {name: value for name, value in message.items() if name != _REASONING}
    return rest | {"content": content} | ({_REASONING: reasoning} if reasoning else {})


def _render(tokenizer: Any, messages: list[dict[str, Any]], tools: Sequence[Any] | None) -> Rendering:
    """The rendering in which the reasoning is a piece of the last message too."""
    reasoning, last = messages[-1].get(_REASONING), len(messages) - 1
    real = render(tokenizer, messages, tools=tools, verbatim=[last])
    if not reasoning:
        return real
    sign = "qzr"
    while sign in real.text:
        sign += "qzr"
    signs = [*messages[:-1], messages[-1] | {_REASONING: sign}]
    signed = render(tokenizer, signs, tools=tools, verbatim=[last])
    pieces: list[Piece] = []
    for piece in signed.pieces:
        if piece.message is None and sign in piece.text:
            before, _, after = piece.text.partition(sign)
            pieces += [Piece(before, None), Piece(reasoning, last), Piece(after, None)]
        else:
            pieces.append(piece)
    rendering = Rendering(tuple(pieces))
    if rendering.text != real.text:
        raise _unknown("the chat template leaves the reasoning out or changes it")
    return rendering


def _shadow(rendering: Rendering) -> str:
    """The rendered text with filler for every content, so that what is left is the template's own."""
    return "".join(
        piece.text if piece.message is None else _FILLER * len(piece.text) for piece in rendering.pieces
    )


def _places(shadow: str, answer: Mapping[str, Any]) -> dict[str, Span]:
    """The regions of the last turn, as spans of characters."""
    header = shadow.rfind(_HEADER)
    end = shadow.find(_END, header)
    opening = _OPENING.match(shadow, header + len(_HEADER), end) if 0 <= header < end else None
    if opening is None:
        raise _unknown(f"the last turn of the chat template does not begin with {_HEADER!r}")
    if bool(answer.get(_REASONING)) != bool(opening["reasoning"]):
        raise _unknown(f"the chat template does not write the reasoning between {_OPENER} and {_CLOSER}")
    begin = opening.end()
    if not shadow.startswith(_FILLER * len(answer["content"]), begin):
        raise _unknown("the chat template writes something between the reasoning and the answer")
    spans = {}
    if opening["reasoning"]:
        spans = {"reasoning": opening.span("reasoning"), "close": opening.span("close")}
    return spans | {"answer": (begin, begin + len(shadow[begin:end].rstrip())), EOT: (end, end + len(_END))}


def _in_bytes(text: str, span: Span) -> Span:
    begin = len(text[: span[0]].encode())
    return begin, begin + len(text[span[0] : span[1]].encode())


def _unknown(what: str) -> AlignError:
    return AlignError(
        what,
        code="align.template",
        expected=f"ChatML: {_HEADER!r}, {_OPENER} reasoning {_CLOSER}, the answer, {_END}",
        fix="leave native_thinking_alignment out for this model",
    )

"""A conversation in one tokenizer's ids, with the regions of the last answer that are supervised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.roles import THINKING
from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.rendering import (
    Encoded,
    Rendering,
    encode_rendering,
    refuse_hidden_markers,
    render,
)
from atroposlib.errors import AlignError

CONTENT = "content"
EOT = "eot"

Span = tuple[int, int]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RenderedChatDocument:
    """A rendered conversation of T tokens.

    Attributes:
        text: The rendered text.
        ids: int32 [T].
        begins: int64 [T]. First byte of each token in ``text``.
        ends: int64 [T]. The byte behind its last.
        regions: Spans of bytes in ``text`` by name, rising. Empty where nothing is supervised.
    """

    text: str
    ids: npt.NDArray[np.int32]
    begins: Ints
    ends: Ints
    regions: Mapping[str, Span]

    def inside(self, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
        """bool [T]: tokens that lie in one of the spans with all of their bytes."""
        found = np.zeros(len(self.ids), dtype=np.bool_)
        for begin, end in spans:
            found |= (self.begins >= begin) & (self.begins < end) & (self.ends <= end)
        return found

    def supervised(self) -> npt.NDArray[np.bool_]:
        """bool [T]: tokens of all regions."""
        return self.inside(list(self.regions.values()))


def render_document(
    tokenizer: Any,
    encoder: TextEncoder,
    messages: list[dict[str, Any]],
    *,
    tools: Sequence[Any] | None,
    include_thinking: bool,
) -> RenderedChatDocument:
    """A conversation with two regions: the last content, and the token that ends its turn.

    Args:
        tokenizer: Whose chat template renders it.
        encoder: Encodes for the same tokenizer.
        messages: The last is the answer.
        tools: The tools that the template describes.
        include_thinking: Whether reasoning at the begin of the content is supervised, without its opener.

    Raises:
        AlignError: A template that refuses the conversation (``align.template``); an answer that it changes
            or that has no content, or a marker that is only said (``align.content``).
    """
    last = len(messages) - 1
    rendering = render(tokenizer, messages, tools=tools, verbatim=[last])
    refuse_hidden_markers(encoder, messages, rendering, tools=tools)
    encoded = encode_rendering(encoder, rendering)
    content = content_span(rendering, last)
    if content is None:
        raise AlignError(
            "the last answer has no content to supervise",
            code="align.content",
            where=f"message_log[{last}].content",
            fix="native_thinking_alignment supervises reasoning and tool calls",
        )
    regions = {CONTENT: _without_thinking(rendering.text, content, include_thinking)}
    end = end_of_turn(encoder, encoded, content[1])
    if end is not None:
        regions[EOT] = end
    return document(rendering, encoded, regions)


def document(rendering: Rendering, encoded: Encoded, regions: Mapping[str, Span]) -> RenderedChatDocument:
    """The document of a rendering; regions without a byte are left out."""
    real = {name: span for name, span in regions.items() if span[0] < span[1]}
    return RenderedChatDocument(rendering.text, encoded.ids, encoded.begins, encoded.ends, real)


def content_span(rendering: Rendering, message: int) -> Span | None:
    """The bytes of a message's content in the rendered text; None where it has none."""
    begin = 0
    for piece in rendering.pieces:
        end = begin + len(piece.text.encode())
        if piece.message == message:
            return begin, end
        begin = end
    return None


def end_of_turn(encoder: TextEncoder, encoded: Encoded, begin: int) -> Span | None:
    """The first token from byte ``begin`` on that ends a turn or the text; None where no token does."""
    roles = encoder.vocabulary.roles
    wanted = [roles[role] for role in ("end_of_turn", "eos") if role in roles]
    found = np.flatnonzero((encoded.begins >= begin) & np.isin(encoded.ids, wanted))
    return (int(encoded.begins[found[0]]), int(encoded.ends[found[0]])) if len(found) else None


def _without_thinking(text: str, content: Span, include_thinking: bool) -> Span:
    """The part of a content behind the marker that opens its reasoning, or behind all of the reasoning."""
    begin, end = content
    written = text.encode()[begin:end]
    for opener, closer in THINKING:
        blank = len(written) - len(written.lstrip())
        if not written.startswith(opener.encode(), blank):
            continue
        opened = blank + len(opener.encode())
        if include_thinking:
            return begin + opened, end
        closed = written.find(closer.encode(), opened)
        # Reasoning that was cut off is reasoning to the end.
        return (end, end) if closed < 0 else (begin + closed + len(closer.encode()), end)
    return content

"""Renders a conversation through a chat template, and knows which tokens are whose content."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.runs import Runs, equal_runs
from atroposlib.align.streams import Streamer
from atroposlib.align.views.contents import Content, Messages, contents_of, find_contents
from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.templates import write
from atroposlib.errors import AlignError

NO_MESSAGE = -1
"""Stands at tokens that are no message's content."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a rendered text.

    Attributes:
        text: The characters.
        message: Index of the message whose content they are; None for the template's own.
    """

    text: str
    message: int | None


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered conversation: the pieces in a row are the text."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The whole."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a rendering, as it is encoded.

    Attributes:
        value: Text, or a marker's id.
        begin: Its first byte in the rendered text.
        message: Index of the message whose content it is; ``NO_MESSAGE`` for the template's own.
    """

    value: str | int
    begin: int
    message: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A rendering as ids. U tokens.

    Attributes:
        ids: int32 [U].
        message: int32 [U]. Index of the message in whose content the token lies wholly; ``NO_MESSAGE`` for
            the template's text, for markers, and for tokens that reach over the border of a content.
        begins: int64 [U]. First byte of each token in the rendered text. A token that stands for other bytes
            than the text's, as after a normalisation, has the whole stretch that differs.
        ends: int64 [U]. The byte behind its last.
    """

    ids: npt.NDArray[np.int32]
    message: npt.NDArray[np.int32]
    begins: Ints
    ends: Ints


def render(
    tokenizer: Any,
    messages: Messages,
    *,
    template: str | None = None,
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = False,
    side: str = "",
    verbatim: Collection[int] | None = None,
    **template_arguments: Any,
) -> Rendering:
    """Render a conversation.

    Args:
        tokenizer: What has ``apply_chat_template``.
        messages: Their contents are texts, or lists of parts, of which those with ``text`` are content.
        template: A template's text; the tokenizer's own when omitted.
        tools: The tools that the template describes.
        add_generation_prompt: Let the begin of an answer follow.
        side: Whose rendering this is, for errors.
        verbatim: Messages whose contents must stand in the text as they are, but for white space around
            them; all when omitted. Of the others there is a piece as long as what stands there unchanged.
        template_arguments: What the template is given besides, such as ``enable_thinking``.

    Raises:
        AlignError: There is no template or it refuses the messages (``align.template``), or it changes a
            content (``align.content``).
    """
    arguments = {"tools": tools, "add_generation_prompt": add_generation_prompt, **template_arguments}
    contents = contents_of(messages)
    text, spans = find_contents(
        messages, contents, lambda shown: write(tokenizer, shown, template, side, **arguments)
    )
    found = []
    for content, span in zip(contents, spans, strict=True):
        begin, end = (0, 0) if span is None else span
        if (verbatim is None or content.message in verbatim) and not content.is_whole(text[begin:end]):
            raise _changed(content, text, side)
        found.append((begin, end, content.message))
    return Rendering(tuple(_pieces(text, sorted(found))))


def refuse_hidden_markers(
    encoder: TextEncoder,
    messages: Messages,
    rendering: Rendering,
    *,
    tools: Sequence[Any] | None = None,
    side: str = "",
) -> None:
    """Refuse what a template would write as markers though somebody only said their names.

    Names in contents are text. What else messages and tools say cannot be told from the template's own text.

    Raises:
        AlignError: The name of a special token in the arguments of a call, in a tool, or in a content that
            the template changes (``align.content``).
    """
    shown = Counter(piece.message for piece in rendering.pieces for _ in piece.text.strip())
    said = Counter(content.message for content in contents_of(messages) for _ in content.text.strip())
    told: dict[str, Any] = {"tools": tools}
    for index, message in enumerate(messages):
        is_whole = shown[index] >= said[index]
        told[f"message {index}"] = {
            key: value for key, value in message.items() if key != "content" or not is_whole
        }
    for place, value in told.items():
        text = json.dumps(value, ensure_ascii=False, default=str)
        marker = next((part for part, _, _ in encoder.split(text) if isinstance(part, int)), None)
        if marker is not None:
            raise AlignError(
                "the name of a special token stands where the chat template writes it as the token",
                code="align.content",
                where=f"{side} {place}".strip(),
                got=encoder.vocabulary.names[marker],
                fix="take it out, or take a template that writes contents as they are",
            )


def _changed(content: Content, text: str, side: str) -> AlignError:
    return AlignError(
        "the chat template does not write the content of a message as it is",
        code="align.content",
        where=f"{side} message {content.message}".strip(),
        got=f"{text.count(content.text.strip())} places where it stands",
        expected="one",
        fix="take another template, or leave out of the content what the template drops",
    )


def _pieces(text: str, found: list[tuple[int, int, int]]) -> Iterator[Piece]:
    done = 0
    for begin, end, message in found:
        # What a template changed can seem to lie within what is found already.
        begin = max(begin, done)
        if begin >= end:
            continue
        if begin > done:
            yield Piece(text[done:begin], None)
        yield Piece(text[begin:end], message)
        done = end
    if done < len(text):
        yield Piece(text[done:], None)


def parts_of(encoder: TextEncoder, rendering: Rendering) -> Iterator[Part]:
    """A rendering with the markers that its template wrote by id; what stands in a content stays text."""
    done = 0
    for piece in rendering.pieces:
        if piece.message is not None:
            yield Part(piece.text, done, piece.message)
        else:
            for value, begin, _ in encoder.split(piece.text):
                yield Part(value, done + len(piece.text[:begin].encode()), NO_MESSAGE)
        done += len(piece.text.encode())


def encode_rendering(encoder: TextEncoder, rendering: Rendering) -> Encoded:
    """The ids of a rendering, and where in it each of them comes from."""
    parts = list(parts_of(encoder, rendering))
    ids = np.array(encoder.encode_parts(part.value for part in parts), dtype=np.int32)
    if not parts:
        nothing = np.empty(0, dtype=np.int64)
        return Encoded(ids, ids, nothing, nothing)
    begins, ends = _places(encoder, ids, parts)
    return Encoded(ids, _owners(rendering, begins, ends), begins, ends)


def symbols_of(parts: Iterable[str | int], streamer: Streamer) -> npt.NDArray[np.int32]:
    """int32 [N]: what the stream of these parts is wherever the tokenizer keeps them as they are."""
    symbols = (
        np.frombuffer(part.encode(), dtype=np.uint8).astype(np.int32)
        if isinstance(part, str)
        else np.array([streamer.symbols[part]], dtype=np.int32)
        for part in parts
    )
    return np.concatenate([np.empty(0, dtype=np.int32), *symbols])


def _places(encoder: TextEncoder, ids: npt.NDArray[np.int32], parts: list[Part]) -> tuple[Ints, Ints]:
    """The first byte of each token in the rendered text, and the byte behind its last."""
    streamer = encoder.streamer
    stream = streamer.stream(ids)
    first, last = [], []
    for part in parts:
        if isinstance(part.value, str):
            first.append(np.arange(part.begin, part.begin + len(part.value.encode())))
            last.append(first[-1] + 1)
        else:
            first.append(np.array([part.begin]))
            last.append(first[-1] + len(encoder.vocabulary.names[part.value].encode()))
    begins, ends = np.concatenate(first), np.concatenate(last)
    runs = equal_runs(stream.symbols, symbols_of((part.value for part in parts), streamer))
    starts = _mapped(runs, stream.starts, len(begins), forward=False)
    stops = _mapped(runs, stream.ends, len(begins), forward=True)
    found = np.append(begins, ends[-1])[starts]
    return found, np.where(stops > starts, ends[np.maximum(stops, 1) - 1], found)


def _mapped(runs: Runs, places: Ints, length: int, *, forward: bool) -> Ints:
    """Places in one stream as places in the other; within what differs, to its begin, or to its end."""
    if not len(runs.lengths):
        return np.full(len(places), length if forward else 0, dtype=np.int64)
    ends = runs.student + runs.lengths
    if forward:
        run = np.searchsorted(ends, places)
        known = np.minimum(run, len(ends) - 1)
        inside = np.maximum(places - runs.student[known], 0) + runs.teacher[known]
        return np.where(run == len(ends), length, inside)
    run = np.searchsorted(runs.student, places, side="right") - 1
    known = np.maximum(run, 0)
    inside = np.minimum(places - runs.student[known], runs.lengths[known]) + runs.teacher[known]
    return np.where(run < 0, 0, inside)


def _owners(rendering: Rendering, begins: Ints, ends: Ints) -> npt.NDArray[np.int32]:
    """int32 [U]: the message in whose content each token lies wholly."""
    messages = np.array(
        [NO_MESSAGE if piece.message is None else piece.message for piece in rendering.pieces], dtype=np.int32
    )
    lasts = np.cumsum([len(piece.text.encode()) for piece in rendering.pieces])
    piece = np.minimum(np.searchsorted(lasts, begins, side="right"), len(lasts) - 1)
    owners: npt.NDArray[np.int32] = np.where(ends <= lasts[piece], messages[piece], NO_MESSAGE)
    return owners

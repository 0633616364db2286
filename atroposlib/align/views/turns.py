"""Reads the turns of a conversation back from token ids, by what the chat template writes between contents.

What a template writes is learned by rendering short conversations of known words with it. A sequence is read
as a string in which each character is a byte of text or one marker, so that a marker's name in a content is
never taken for the marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from atroposlib.align.markers import BYTES
from atroposlib.align.streams import Streamer
from atroposlib.align.tables.table import Vocabulary
from atroposlib.align.views.templates import (
    BEGIN,
    END,
    Frame,
    frames_of,
    names_pattern,
    with_turn_markers,
    written_tokens,
)

_MARKER = re.compile("([^\x00-\xff])")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a sequence.

    Attributes:
        role: Who speaks.
        content: The bytes of what is said.
        begin: First token of the content; where there is none, the token before which it would stand.
        end: The token behind its last; tokens that reach into the template's text are not of the content.
    """

    role: str
    content: bytes
    begin: int
    end: int


class TurnReader:
    """Reads turns as one tokenizer's chat template writes them.

    Args:
        tokenizer: A fast tokenizer of transformers; without a chat template it reads no turns.
        vocabulary: Its byte table.

    Attributes:
        vocabulary: The byte table in which also those markers of turns are special that its files do not
            call so.
    """

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary) -> None:
        texts = frames_of(tokenizer)
        self.vocabulary = with_turn_markers(tokenizer, vocabulary, texts)
        tokens = {**written_tokens(tokenizer, texts), **self.vocabulary.names}
        names = {name: number for number, name in tokens.items()}
        pattern = names_pattern(names)
        frames = {Frame(one.before, one.after, _as_symbols(one.text, names, pattern)) for one in texts}
        self._streamer = Streamer(self.vocabulary, {number: BYTES + number for number in tokens}, 0)
        self._frames = _unambiguous(frames | set(_loosened(frames)))

    def read(self, ids: Sequence[int] | npt.NDArray[Any]) -> list[Turn]:
        """The turns of a sequence [T]; none where it does not begin as the template begins."""
        stream = self._streamer.stream(ids)
        # Unknown text is no text that a template writes.
        shown = np.where(stream.symbols < 0, 0x10FFFF, stream.symbols)
        text = shown.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        # Those without a symbol are of no turn.
        tokens = np.append(np.flatnonzero(stream.starts < stream.ends), len(stream.starts))
        starts, ends = stream.starts[tokens[:-1]], stream.ends[tokens[:-1]]
        turns = []
        for role, begin, end in self._spans(text):
            first = int(np.searchsorted(starts, begin))
            last = max(first, int(np.searchsorted(ends, end, side="right")))
            behind = int(tokens[last - 1]) + 1 if last > first else int(tokens[first])
            turns.append(Turn(role, self._bytes(text[begin:end]), int(tokens[first]), behind))
        return turns

    def _bytes(self, content: str) -> bytes:
        """A content's bytes; a marker that is a special token is no text."""
        return b"".join(
            self.vocabulary.bytes_of(ord(part) - BYTES) if index % 2 else part.encode("latin-1")
            for index, part in enumerate(_MARKER.split(content))
        )

    def _spans(self, text: str) -> Iterator[tuple[str, int, int]]:
        """The role of each turn, and its content's first symbol and the one behind its last."""
        starting = [one for one in self._next(BEGIN) if text.startswith(one.text)]
        if not starting:
            return
        frame = max(starting, key=lambda one: len(one.text))
        role, begin = frame.after, len(frame.text)
        # Where each text is next, so that the whole is searched once for each.
        places: dict[str, int] = {}
        while True:
            for one in self._next(role):
                if places.get(one.text, -1) < begin:
                    at = text.find(one.text, begin)
                    places[one.text] = len(text) if at < 0 else at
            found = [(places[one.text], -len(one.text), one) for one in self._next(role)]
            at, _, frame = min(found, key=lambda one: one[:2], default=(len(text), 0, frame))
            if at == len(text):
                yield role, begin, self._end(role, text, begin)
                return
            yield role, begin, at
            role, begin = frame.after, at + len(frame.text)

    def _next(self, role: str) -> Iterator[Frame]:
        return (one for one in self._frames if one.before == role and one.after != END)

    def _end(self, role: str, text: str, begin: int) -> int:
        """Where the last content ends: before as much of the template's end as there is."""
        for frame in self._frames:
            if frame.before == role and frame.after == END:
                for length in range(len(frame.text), 0, -1):
                    # A lone space or line break may be the content's own.
                    is_marked = ord(frame.text[0]) >= BYTES or length == len(frame.text)
                    if is_marked and text.endswith(frame.text[:length], begin):
                        return len(text) - length
        return len(text)


def _as_symbols(text: str, names: Mapping[str, int], pattern: re.Pattern[str]) -> str:
    split = pattern.split(text)
    return "".join(
        chr(BYTES + names[part]) if index % 2 else part.encode().decode("latin-1")
        for index, part in enumerate(split)
    )


def _loosened(frames: set[Frame]) -> Iterator[Frame]:
    """Frames without the white space behind the marker that ends the turn, where others left it out."""
    ends = {one.before: one.text for one in frames if one.after == END}
    for frame in frames:
        end = ends.get(frame.before, "")
        bare, begin = end.rstrip(), frame.text[len(end) :]
        is_marked = bare != "" and ord(bare[-1]) >= BYTES and begin != ""
        if is_marked and end != bare and frame.after != END and frame.text.startswith(end):
            yield Frame(frame.before, frame.after, bare + begin)


def _unambiguous(frames: set[Frame]) -> list[Frame]:
    """One frame for each text behind a role: some templates write a system message as the begin of a turn.

    Those that go on where another between the same roles ends are left out: that rest is content.
    """
    rank = {role: index for index, role in enumerate(("user", "assistant", END, "tool", "system"))}
    ordered = sorted(frames, key=lambda one: (one.text, rank[one.after]))
    first = {(one.before, one.text): one for one in reversed(ordered)}
    return [
        one
        for one in first.values()
        if not any(
            (other.before, other.after) == (one.before, one.after)
            and other.text != one.text
            and one.text.startswith(other.text)
            for other in frames
        )
    ]

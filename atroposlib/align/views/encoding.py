"""Encodes text and the markers around it into ids, so that no text is ever taken for a marker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Set
from itertools import groupby
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from atroposlib.align.markers import BYTES
from atroposlib.align.streams import Streamer
from atroposlib.align.tables.table import Vocabulary
from atroposlib.align.views.templates import frames_of, names_pattern, with_turn_markers
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.errors import ConfigError


class TextEncoder:
    """Encodes for one tokenizer, with its special tokens off: in a text they are letters like any other.

    It can be pickled, and used by several threads at once.

    Args:
        tokenizer: A fast tokenizer of transformers, or a ``tokenizers.Tokenizer``. It stays as it is.
        vocabulary: Its byte table; read from the tokenizer when omitted.

    Attributes:
        vocabulary: The byte table, in which markers of turns are special whatever the files call them
            (:func:`~atroposlib.align.views.templates.with_turn_markers`).
        marker_names: Id of each special token by how it is written.
        streamer: Makes streams in which each special token is a symbol of its own.

    Raises:
        ConfigError: No fast tokenizer, or one that a byte table cannot represent (``align.unsupported``).
    """

    def __init__(self, tokenizer: Any, vocabulary: Vocabulary | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not isinstance(backend, Tokenizer):
            raise ConfigError(
                "this cannot encode text",
                code="align.unsupported",
                where="tokenizer",
                got=type(tokenizer).__name__,
                expected="a fast tokenizer of transformers",
                fix="load it with AutoTokenizer.from_pretrained",
            )
        table = vocabulary_of(tokenizer) if vocabulary is None else vocabulary
        self.vocabulary = with_turn_markers(tokenizer, table, frames_of(tokenizer))
        self.marker_names = {name: number for number, name in self.vocabulary.names.items()}
        self.streamer = Streamer(
            self.vocabulary, {number: BYTES + number for number in self.vocabulary.names}, 0
        )
        self._marker = names_pattern(self.marker_names)
        self._swallowing = {
            token.content: (token.lstrip, token.rstrip)
            for token in backend.get_added_tokens_decoder().values()
        }
        special = self.vocabulary.names.keys()
        self._encoder = self._later = _with_specials_off(backend, backend.pre_tokenizer, special)
        if (later := _without_first_prefix(backend.pre_tokenizer)) is not None:
            self._later = _with_specials_off(backend, later, special)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy in another process; tokenizers forgets there that special tokens are off."""
        self.__dict__.update(state)
        self._encoder.encode_special_tokens = self._later.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """The ids of a text that nothing stands before."""
        return _ids(self._encoder, text)

    def encode_parts(self, parts: Iterable[str | int]) -> list[int]:
        """The ids of texts and of markers, which are given as their ids.

        Only a marker is a cut: texts in a row are encoded in one piece, since encodings of two texts put
        together are not the encoding of both.
        """
        ids: list[int] = []
        encoder = self._encoder
        for is_text, group in groupby(parts, key=lambda part: isinstance(part, str)):
            if is_text:
                ids += _ids(encoder, "".join(str(part) for part in group))
            else:
                ids += (int(part) for part in group)
            encoder = self._later
        return ids

    def split(self, text: str) -> Iterator[tuple[str | int, int, int]]:
        """The markers written in a text, by id, and the texts between them.

        White space beside a marker that swallows it is in none of the texts, as the tokenizer reads it.

        Yields:
            A text or a marker, the first of its characters in ``text``, and the one behind its last.
        """
        done = 0
        split = self._marker.split(text)
        for index, part in enumerate(split):
            begin, done = done, done + len(part)
            if index % 2:
                yield self.marker_names[part], begin, done
                continue
            kept = part
            if index and self._swallows(split[index - 1])[1]:
                kept = part.lstrip()
                begin = done - len(kept)
            if index + 1 < len(split) and self._swallows(split[index + 1])[0]:
                kept = kept.rstrip()
            if kept:
                yield kept, begin, begin + len(kept)

    def _swallows(self, name: str) -> tuple[bool, bool]:
        return self._swallowing.get(name, (False, False))


def _with_specials_off(
    backend: Tokenizer, pre_tokenizer: PreTokenizer | None, special: Set[int]
) -> Tokenizer:
    """A tokenizer with the same model, which is shared: a copy of it would take seconds.

    Args:
        backend: The tokenizer.
        pre_tokenizer: Takes the place of its own.
        special: The added tokens that are special, by id. Only those can be turned off.
    """
    encoder = Tokenizer(backend.model)
    if backend.normalizer is not None:
        encoder.normalizer = backend.normalizer
    if pre_tokenizer is not None:
        encoder.pre_tokenizer = pre_tokenizer
    # In the order of their ids they get these again.
    added = sorted(backend.get_added_tokens_decoder().items())
    for number, token in added:
        token.special = number in special
    encoder.add_tokens([token for _, token in added])
    encoder.encode_special_tokens = True
    return encoder


def _ids(encoder: Tokenizer, text: str) -> list[int]:
    ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
    return ids


def _without_first_prefix(pre_tokenizer: PreTokenizer | None) -> PreTokenizer | None:
    """The pre-tokenizer without the space that it puts before a whole text; None where it puts none.

    A text behind a marker does not begin the whole, and encoded alone it would get that space.
    """
    if pre_tokenizer is None:
        return None
    alone = Tokenizer(BPE())
    alone.pre_tokenizer = pre_tokenizer
    file = json.loads(alone.to_str())
    found = [one for one in _steps(file["pre_tokenizer"]) if one.get("prepend_scheme") == "first"]
    for one in found:
        one["prepend_scheme"] = "never"
    return Tokenizer.from_str(json.dumps(file)).pre_tokenizer if found else None


def _steps(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield step
    for inner in step.get("pretokenizers", ()):
        yield from _steps(inner)

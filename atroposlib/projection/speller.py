"""Spells byte strings in the tokens of one tokenizer, as it would write them inside a text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from atroposlib.align.tables.table import TEXT, Vocabulary
from atroposlib.align.tables.tokenizer_file import read_source
from atroposlib.align.vocabulary import named_path, vocabulary_of

BATCH = 16_384
"""Strings encoded at a time, which bounds the memory that their encodings take."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A byte string in tokens.

    Attributes:
        ids: The tokens, whose bytes in a row are the string; none where the vocabulary cannot write it.
        encoded: Whether the tokenizer itself chose them. What is no text, such as a part of a character, or
            comes back from the tokenizer as other bytes is split into the longest tokens that fit.
    """

    ids: list[int]
    encoded: bool


class Speller:
    """Spells in the tokens of one tokenizer.

    Args:
        tokenizer: A directory, a hub id, or a fast tokenizer of transformers.

    Attributes:
        vocabulary: The byte table.

    Raises:
        ConfigError: The files cannot be read (``usage.file``, ``usage.model`` on the hub), or not as bytes
            (``align.unsupported``).
    """

    def __init__(self, tokenizer: Any) -> None:
        self.vocabulary = vocabulary_of(tokenizer)
        self._file = _file_of(tokenizer)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_buffer(_inside_a_text(self._file, self.vocabulary))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Bytes that happen to spell a marker are text.
        tokenizer.encode_special_tokens = True
        return tokenizer

    @cached_property
    def parts(self) -> list[bytes]:
        """The bytes of every id."""
        blob, ends = self.vocabulary.blob.tobytes(), self.vocabulary.offsets.tolist()
        return [blob[begin:end] for begin, end in itertools.pairwise(ends)]

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """The lowest text id of each byte string."""
        kinds = self.vocabulary.kinds.tolist()
        ids = [number for number, kind in enumerate(kinds) if kind == TEXT]
        return {self.parts[number]: number for number in reversed(ids)}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.by_bytes), default=0)

    def spell(self, strings: Sequence[bytes]) -> list[Spelling]:
        """The spelling of each string."""
        found: list[Spelling] = []
        for begin in range(0, len(strings), BATCH):
            found += self._spell(strings[begin : begin + BATCH])
        return found

    def _spell(self, strings: Sequence[bytes]) -> list[Spelling]:
        # A sign that UTF-8 does not have stays behind, so that the bytes differ below.
        texts = [string.decode(errors="replace") for string in strings]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [
            Spelling(encoding.ids, True)
            if b"".join([self.parts[number] for number in encoding.ids]) == string
            else Spelling(self._longest_tokens(string), False)
            for string, encoding in zip(strings, encodings, strict=True)
        ]

    def _longest_tokens(self, string: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(string):
            ends = range(min(len(string), at + self._longest), at, -1)
            end = next((end for end in ends if string[at:end] in self.by_bytes), None)
            if end is None:
                return []
            ids.append(self.by_bytes[string[at:end]])
            at = end
        return ids


def _file_of(tokenizer: Any) -> bytes:
    if isinstance(tokenizer, str | Path):
        return read_source(named_path(tokenizer).expanduser()).tokenizer
    text: str = tokenizer.backend_tokenizer.to_str()
    return text.encode()


def _inside_a_text(tokenizer_json: bytes, vocabulary: Vocabulary) -> bytes:
    """The tokenizer's file without the space that it puts before a text: a token stands within one."""
    if vocabulary.prefix == "none":
        return tokenizer_json
    file = json.loads(tokenizer_json)
    if (normalizer := file.get("normalizer")) is not None:
        steps = normalizer.get("normalizers", [normalizer])
        kept = [step for step in steps if step["type"] != "Prepend"]
        file["normalizer"] = {"type": "Sequence", "normalizers": kept}
    splitter = file.get("pre_tokenizer") or {}
    for step in splitter.get("pretokenizers", [splitter]):
        if step.get("type") == "Metaspace":
            step |= {"prepend_scheme": "never", "add_prefix_space": False}
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = False
    return json.dumps(file).encode()

"""Turns a piece of a vocabulary into the bytes that the tokenizer's decoder makes of it.

A decoder qualifies when it reads every piece by itself, so that the bytes of a sequence are those of its
pieces in a row. What it strips at the very start of a text is not looked at here: the encoder tells whether
that space was in the text (:mod:`atroposlib.align.tables.steps`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from atroposlib.align.tables.tokenizer_file import Part, unsupported

BYTES = "bytes"
"""The alphabet in which each character of a piece is one byte."""
PLAIN = "plain"
"""The alphabet in which pieces are text as it stands."""

ToBytes = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Decoder:
    """How pieces become bytes.

    Attributes:
        to_bytes: Reads one piece.
        alphabet: :data:`BYTES`, :data:`PLAIN`, or the sign that stands for a space.
        reads_byte_pieces: Whether ``<0x0A>`` is the byte 10.
        word_prefix: Of pieces that continue a word, where every other piece starts with a space; else None.
    """

    to_bytes: ToBytes
    alphabet: str
    reads_byte_pieces: bool = False
    word_prefix: str | None = None


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level pieces: printable Latin-1, then U+0100 and on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_NO_BYTE = 0xFFFF
# Latin-1 characters that stand for no byte must not pass for themselves, so they become what Latin-1 lacks.
_BYTE_OF = dict.fromkeys(range(256), _NO_BYTE) | {
    ord(character): byte for byte, character in enumerate(byte_characters())
}


def byte_level(piece: str) -> bytes:
    """The bytes of a byte-level piece; one with any other character is literal text, as in the library."""
    try:
        return piece.translate(_BYTE_OF).encode("latin-1")
    except UnicodeEncodeError:
        return piece.encode()


_BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


def _spaced(sign: str, byte_pieces: bool) -> ToBytes:
    def to_bytes(piece: str) -> bytes:
        if byte_pieces and len(piece) == 6 and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes((int(match[1], 16),))
        return piece.replace(sign, " ").encode()

    return to_bytes


# What a WordPiece decoder with `cleanup` makes of a piece with its space, in the library's order.
_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def _words(prefix: str, cleanup: bool) -> ToBytes:
    def to_bytes(piece: str) -> bytes:
        text = piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}"
        for found, better in _CLEANUP if cleanup else ():
            text = text.replace(found, better)
        return text.encode()

    return to_bytes


def make_decoder(part: Part | None, where: str) -> Decoder:
    """The reader of pieces that a decoder of tokenizer.json amounts to.

    Raises:
        ConfigError: The decoder does not read every piece by itself (``align.unsupported``).
    """
    where = f"{where}#decoder"
    if part is None:
        raise unsupported("without a decoder a space stands between any two tokens", where, "null")
    parts: list[Part] = part.get("decoders", []) if part.get("type") == "Sequence" else [part]
    match parts:
        case [{"type": "ByteLevel"}]:
            return Decoder(byte_level, BYTES)
        case [{"type": "WordPiece", "prefix": str(prefix), "cleanup": bool(cleanup)}] if prefix:
            return Decoder(_words(prefix, cleanup), PLAIN, word_prefix=prefix)
        case _:
            return _with_sign(parts, where)


def _with_sign(parts: list[Part], where: str) -> Decoder:
    sign, byte_pieces, fused = "", False, False
    for part in parts:
        match part:
            case {"type": "Replace", "pattern": {"String": str(found)}, "content": " "} if not (
                sign or fused
            ):
                sign = found
            case {"type": "Metaspace", "replacement": str(found)} if not (sign or fused):
                sign = found
            case {"type": "ByteFallback"} if not fused:
                byte_pieces = True
            case {"type": "Fuse"}:
                fused = True
            # At the start of the whole text: undoes the encoder's prefix, which `steps` reads on its own.
            case {"type": "Strip", "content": " ", "start": 0 | 1, "stop": 0} if fused:
                continue
            case _:
                raise unsupported("a decoder that cannot be read piece by piece", where, _named(part))
    if not sign:
        raise unsupported("a chain of decoders that makes no spaces", where, [_named(part) for part in parts])
    return Decoder(_spaced(sign, byte_pieces), sign, reads_byte_pieces=byte_pieces)


def _named(part: Part) -> str:
    settings = {name: value for name, value in part.items() if name != "type"}
    return f"{part.get('type')} {settings}" if settings else str(part.get("type"))

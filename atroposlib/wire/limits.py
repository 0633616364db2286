"""How large what is read may be, and decompression that stops there."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from atroposlib.errors import WireError

GZIP_WBITS = 31
"""zlib's window setting that means: gzip header and trailer, largest window."""

_SLICE_BYTES = 1024
"""Compressed bytes inflated at a time: at deflate's best, 1032 to 1, they make 1 MiB."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what is decoded. All of them lie far beyond a real group.

    Attributes:
        body_bytes: A request body as it comes.
        inflated_bytes: Arrays of a frame, or a JSON body, after decompression.
        ratio: Inflated bytes for each compressed one; checked beyond ``ratio_floor_bytes``.
        ratio_floor_bytes: Inflated bytes that any body may have, whatever its ratio.
        header_bytes: JSON header of a frame.
        sequences: Sequences G of a group.
        tokens: Tokens T (or U of a teacher) of a sequence.
        columns: Columns K.
        teachers: Entries of ``teachers``.
        cells: Positions x columns of all targets of a group, which are what they take as JSON.
        json_depth: Nesting of a group as JSON; the group itself is 1.
        json_values: Commas of a JSON body: parsed values take many times their text.
        rest_values: The same of what a frame holds as JSON (messages, overrides, ..).
    """

    body_bytes: int = 64 << 20
    inflated_bytes: int = 512 << 20
    ratio: int = 200
    ratio_floor_bytes: int = 8 << 20
    header_bytes: int = 1 << 20
    sequences: int = 1024
    tokens: int = 131_072
    columns: int = 256
    teachers: int = 64
    cells: int = 64 << 20
    json_depth: int = 16
    json_values: int = 64 << 20
    rest_values: int = 1 << 20

    def most_inflated(self, compressed: int) -> int:
        """Most bytes that this many compressed ones may become."""
        return min(self.inflated_bytes, max(self.ratio_floor_bytes, self.ratio * compressed))


DEFAULT = Limits()


def too_large(what: str, *, where: str | None = None, got: object = None, most: object = None) -> WireError:
    """The error for what is beyond a limit (HTTP 413)."""
    return WireError(what, code="wire.too_large", where=where, got=got, expected=f"at most {most}")


def inflate_gzip(body: bytes, limit: int, limits: Limits = DEFAULT) -> bytes:
    """Decompress all gzip members of a body.

    A bomb is refused after a few MiB: the ratio is checked while it is inflated.

    Args:
        body: The whole compressed body.
        limit: Most bytes the result may have.
        limits: Gives the ratio.

    Raises:
        WireError: wire.too_large beyond a limit, wire.bad_encoding when the body is no gzip or is cut off.
    """
    parts: list[bytes] = []
    size = position = 0
    member = zlib.decompressobj(wbits=GZIP_WBITS)
    while position < len(body):
        if member.eof:
            member = zlib.decompressobj(wbits=GZIP_WBITS)
        compressed = body[position : position + _SLICE_BYTES]
        position += len(compressed)
        try:
            part = member.decompress(compressed)
        except zlib.error as error:
            raise WireError("the body is not gzip", code="wire.bad_encoding", got=str(error)) from error
        position -= len(member.unused_data)
        size += len(part)
        if size > min(limit, limits.most_inflated(position)):
            most = f"{limit} bytes and {limits.ratio} times the compressed size"
            raise too_large("the body is too large after decompression", most=most)
        parts.append(part)
    if not member.eof:
        raise WireError("the gzip body is cut off", code="wire.bad_encoding")
    return b"".join(parts)

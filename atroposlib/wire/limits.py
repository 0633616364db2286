"""Decompression that stops at a limit, so a small body cannot become a huge one."""

from __future__ import annotations

import zlib

from atroposlib.errors import WireError

GZIP_WBITS = 31
"""zlib's window setting that means: gzip header and trailer, largest window."""


def inflate_gzip(body: bytes, limit: int) -> bytes:
    """Decompress all gzip members of a body.

    Args:
        body: The whole compressed body.
        limit: Most bytes the result may have.

    Raises:
        WireError: wire.too_large beyond the limit, wire.bad_encoding when the body is no gzip or is cut off.
    """
    parts: list[bytes] = []
    room = limit
    while body:
        member = zlib.decompressobj(wbits=GZIP_WBITS)
        try:
            # One byte more than allowed: that byte tells a full body from a larger one.
            part = member.decompress(body, room + 1)
        except zlib.error as error:
            raise WireError("the body is not gzip", code="wire.bad_encoding", got=str(error)) from error
        if len(part) > room:
            raise WireError(
                "the body is too large after decompression",
                code="wire.too_large",
                expected=f"at most {limit} bytes",
            )
        if not member.eof:
            raise WireError("the gzip body is cut off", code="wire.bad_encoding")
        parts.append(part)
        room -= len(part)
        body = member.unused_data
    return b"".join(parts)

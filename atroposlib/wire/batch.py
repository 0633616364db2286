"""Several frames as one body: length-prefixed, 64-byte aligned, spliced without being decoded."""

from __future__ import annotations

from collections.abc import Iterable

from atroposlib.errors import WireError
from atroposlib.types import Group
from atroposlib.wire.frame import decode_group

ALIGNMENT = 64

END = bytes(ALIGNMENT)
"""A record of length zero: it ends the body, so that a body that was cut off is recognised."""

_LENGTH_BYTES = 8


def record_parts(frame: bytes) -> tuple[bytes, bytes, bytes]:
    """Prefix, frame and padding, to be sent one after the other."""
    prefix = len(frame).to_bytes(_LENGTH_BYTES, "little").ljust(ALIGNMENT, b"\0")
    return prefix, frame, bytes(-len(frame) % ALIGNMENT)


def encode_batch(frames: Iterable[bytes]) -> bytes:
    """The body of a batch."""
    parts = [part for frame in frames for part in record_parts(frame)]
    return b"".join([*parts, END])


def split_batch(body: bytes | memoryview) -> list[memoryview]:
    """Views of the frames of a body.

    Raises:
        WireError: wire.bad_encoding when the body is cut off or no batch.
    """
    view = memoryview(body)
    frames: list[memoryview] = []
    position = 0
    while True:
        prefix = view[position : position + ALIGNMENT]
        if len(prefix) < ALIGNMENT or any(prefix[_LENGTH_BYTES:]):
            raise _broken("the batch is cut off, or none", position)
        length = int.from_bytes(prefix[:_LENGTH_BYTES], "little")
        start = position + ALIGNMENT
        position = start + length + -length % ALIGNMENT
        if not length:
            break
        frames.append(view[start : start + length])
        if position > len(view):
            raise _broken("the batch is cut off", start)
    if position != len(view):
        raise _broken("bytes follow the end of the batch", position)
    return frames


def decode_batch(body: bytes | memoryview) -> list[Group]:
    """The groups of a body from the API, in order. Raises like :func:`split_batch` and ``decode_group``."""
    return [decode_group(frame) for frame in split_batch(body)]


def _broken(what: str, position: int) -> WireError:
    return WireError(what, code="wire.bad_encoding", where=f"byte {position}")

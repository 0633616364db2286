"""Named arrays as one block of bytes: safetensors' layout, its data optionally compressed with zstd.

Knows nothing of what they mean; a block's format names it. The layout is told in docs/wire.md.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from math import prod
from typing import Any, Literal, get_args

import numpy as np
import orjson
import zstandard
from numpy.typing import NDArray

from atroposlib.errors import WireError
from atroposlib.wire.limits import DEFAULT, Limits, too_large
from atroposlib.wire.shapes import short

Codec = Literal["none", "zstd"]
Arrays = dict[str, NDArray[Any]]

ALIGNMENT = 64
"""Data starts at a multiple of this many bytes, so that views of a mapped or spliced frame are aligned."""

GROUP_FORMAT = "atropos-group"
VERSION = "1"

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_NAMES: dict[np.dtype[Any], str] = {
    np.dtype("<i4"): "I32",
    np.dtype("<f4"): "F32",
    np.dtype("<f2"): "F16",
    np.dtype("u1"): "U8",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_ZSTD_LEVEL = 1


class _PerThread(threading.local):
    """zstd contexts: costly to make, and not to be shared by threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _PerThread()


def write(arrays: Mapping[str, NDArray[Any]], codec: Codec, kind: str = GROUP_FORMAT) -> bytes:
    """Encode arrays (int32, float32, float16, uint8; at most two axes) as a frame of the format ``kind``.

    Larger items come first, so that every array starts at a multiple of its item's size. Data that would
    compress beyond the limits' ratio stays as it is, whatever ``codec`` says.
    """
    if codec not in get_args(Codec):
        raise WireError("the codec is unknown", where="codec", got=codec, expected="none or zstd")
    entries: dict[str, Any] = {}
    parts: list[bytes] = []
    end = 0
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        begin, end = end, end + array.nbytes
        little = array.dtype.newbyteorder("<")
        entries[name] = {"dtype": _NAMES[little], "shape": array.shape, "data_offsets": (begin, end)}
        parts.append(array.astype(little, copy=False).tobytes())
    data = b"".join(parts)
    if codec == "zstd":
        compressed = _zstd.compressor.compress(data)
        # Nobody would read what looks like a bomb.
        fits = len(data) <= DEFAULT.most_inflated(len(compressed))
        codec, data = ("zstd", compressed) if fits else ("none", data)
    header = {_METADATA: {"format": kind, "version": VERSION, "codec": codec}, **entries}
    text = orjson.dumps(header)
    text += b" " * (-(_LENGTH_BYTES + len(text)) % ALIGNMENT)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, data))


def read(frame: bytes | memoryview, limits: Limits = DEFAULT, kind: str = GROUP_FORMAT) -> Arrays:
    """Decode a frame of the format ``kind`` into read-only views of it, or of its decompressed data.

    Raises:
        WireError: wire.bad_encoding when the frame is broken or of another format or version,
            wire.too_large beyond a limit; nothing is inflated before its size is known to be allowed.
    """
    codec, entries, start = _read_header(frame, limits, kind)
    size = _check_tiling(entries)
    data = memoryview(frame)[start:]
    if size > limits.inflated_bytes:
        raise too_large("the frame's arrays are too large", got=size, most=f"{limits.inflated_bytes} bytes")
    if codec == "zstd":
        data = memoryview(_inflate(data, size, limits))
    if len(data) != size:
        raise _broken("the frame's data is not as long as its header says", got=len(data), expected=size)
    return {
        name: np.frombuffer(data, dtype, count=(end - begin) // dtype.itemsize, offset=begin).reshape(shape)
        for name, (dtype, shape, begin, end) in entries.items()
    }


def sizes(frame: bytes | memoryview, limits: Limits = DEFAULT) -> dict[str, int]:
    """Bytes that each array of a frame takes, as its header says. Raises like :func:`read`."""
    entries = _read_header(frame, limits, GROUP_FORMAT)[1]
    _check_tiling(entries)
    return {name: end - begin for name, (_, _, begin, end) in entries.items()}


Entry = tuple[np.dtype[Any], tuple[int, ...], int, int]


def _read_header(frame: bytes | memoryview, limits: Limits, kind: str) -> tuple[str, dict[str, Entry], int]:
    """Codec, the entry (dtype, shape, begin, end) of each array, and where the data starts."""
    length = int.from_bytes(frame[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if len(frame) >= _LENGTH_BYTES and length > limits.header_bytes:
        raise too_large("the frame's header is too large", got=length, most=f"{limits.header_bytes} bytes")
    if start > len(frame) or start % ALIGNMENT:
        raise _broken("this is no frame, or it is cut off", got=f"{len(frame)} bytes, header of {length}")
    header = _parse(bytes(frame[_LENGTH_BYTES:start]))
    if not isinstance(header, dict):
        raise _broken("the frame's header is no JSON object", got=type(header).__name__)
    codec = _read_metadata(header.pop(_METADATA, None), kind)
    return codec, {name: _read_entry(name, entry) for name, entry in header.items()}, start


def _parse(text: bytes) -> Any:
    """The header's JSON; a key that is there twice is refused, since readers would differ on which counts."""
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError:
        header = None
    if isinstance(header, dict):
        keys = len(header) + sum(len(entry) for entry in header.values() if isinstance(entry, dict))
        # One colon a pair: as many as keys were kept means that none was there twice.
        if text.count(b":") == keys:
            return header
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken("the frame's header is no JSON", got=str(error)[:200]) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key is there twice")
    return members


def _read_metadata(metadata: Any, kind: str) -> str:
    if not isinstance(metadata, dict) or metadata.get("format") != kind:
        raise _broken("the frame is of another format", where=_METADATA, expected=f"format {kind}")
    if metadata.get("version") != VERSION:
        got = short(metadata.get("version"))
        raise _broken("the frame's version is unknown", where=_METADATA, got=got, expected=VERSION)
    codec = metadata.get("codec")
    if codec not in get_args(Codec):
        raise _broken(
            "the frame's codec is unknown", where=_METADATA, got=short(codec), expected="none or zstd"
        )
    return str(codec)


def _read_entry(name: str, entry: Any) -> Entry:
    if isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}:
        dtype, shape, offsets = _DTYPES.get(str(entry["dtype"])), entry["shape"], entry["data_offsets"]
        if dtype is not None and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2:
            begin, end = offsets
            if len(shape) in (1, 2) and end - begin == prod(shape) * dtype.itemsize:
                return dtype, tuple(shape), begin, end
    raise _broken("the frame's header describes no array", where=name[:80], got=short(entry))


def _are_sizes(values: Any) -> bool:
    # A bool is an int to Python, and numpy knows no larger axis.
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check_tiling(entries: Mapping[str, Entry]) -> int:
    """The end of the last array; raises unless arrays lie without holes, overlaps or odd starts."""
    reached = 0
    for name, (dtype, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != reached or begin % dtype.itemsize:
            raise _broken("the frame's arrays overlap, have holes or are not aligned", where=name[:80])
        reached = end
    return reached


def _inflate(data: memoryview, size: int, limits: Limits) -> bytes:
    try:
        declared = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise _broken("the frame's data is not zstd", got=str(error)) from error
    if declared != size:
        raise _broken("zstd's content size is not what the header says", got=declared, expected=size)
    if size > limits.most_inflated(len(data)):
        most = f"{limits.ratio} times the compressed size"
        raise too_large("the frame is too large after decompression", got=size, most=most)
    try:
        return _zstd.decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _broken("the frame's data cannot be decompressed", got=str(error)) from error


def _broken(what: str, **facts: Any) -> WireError:
    return WireError(what, code="wire.bad_encoding", **facts)

"""Whatever bytes come as a frame: a group, or WireError, and never more memory than the limits allow."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atroposlib.errors import WireError
from atroposlib.wire import container
from atroposlib.wire.batch import encode_batch
from atroposlib.wire.frame import encode_group
from atroposlib.wire.jobs import frame_to_json, read_batch, read_frame, read_json
from atroposlib.wire.limits import Limits
from tests.wire.support import rich, small

FRAMES = [
    encode_group(group, codec=codec)  # type: ignore[arg-type]
    for group in (rich(), small())
    for codec in ("none", "zstd")
]
PLAIN = FRAMES[0]
HEADER_END = 8 + int.from_bytes(PLAIN[:8], "little")
HEADER: dict[str, Any] = json.loads(PLAIN[8:HEADER_END])
ARRAYS = container.read(PLAIN)


def with_header(text: bytes, data: bytes = PLAIN[HEADER_END:]) -> bytes:
    """A frame with this header, whatever it says."""
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + data


def refused(frame: bytes, limits: Limits = Limits()) -> WireError:  # noqa: B008 - frozen
    with pytest.raises(WireError) as caught:
        read_frame(frame, limits)
    return caught.value


def try_frame(frame: bytes) -> None:
    """Read a frame; one that is taken must make sound JSON, which is taken too."""
    try:
        read_frame(frame)
    except WireError:
        return
    assert len(read_json(frame_to_json(frame), False, None)) == 1


def test_the_frames_of_these_tests_are_taken() -> None:
    for frame in FRAMES:
        assert read_frame(frame)[0].payload == frame
        try_frame(frame)


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_random_bytes_are_refused(body: bytes) -> None:
    for read in (read_frame, read_batch):
        with pytest.raises(WireError):
            read(body)


@given(
    st.sampled_from(FRAMES), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=8)
)
@settings(max_examples=500, deadline=None)
def test_flipped_bits_make_another_group_or_an_error(frame: bytes, flips: list[tuple[float, int]]) -> None:
    changed = bytearray(frame)
    for place, bits in flips:
        changed[int(place * (len(frame) - 1))] ^= bits
    try_frame(bytes(changed))


@given(st.sampled_from(FRAMES), st.floats(0, 1), st.binary(max_size=20))
@settings(max_examples=150, deadline=None)
def test_a_frame_that_is_cut_or_continued_is_refused(frame: bytes, place: float, more: bytes) -> None:
    cut = frame[: int(place * (len(frame) - 1))]
    refused(cut)
    if more:
        refused(frame + more)


NUMBERS = st.sampled_from(
    [-1, 0, 1, 3, 4, 7, 8, 64, 2**31, 2**32, 2**62, 2**63, 2**64, 2**200, 1.0, True, None, "1"]
)
LIES = st.one_of(
    st.builds(
        lambda dtype: {"dtype": dtype}, st.sampled_from(["I32", "F16", "F32", "U8", "I64", "BOOL", 1, None])
    ),
    st.builds(lambda shape: {"shape": shape}, st.lists(NUMBERS, max_size=3) | NUMBERS),
    st.builds(lambda offsets: {"data_offsets": offsets}, st.lists(NUMBERS, max_size=3) | NUMBERS),
    st.builds(lambda value: {"more": value}, NUMBERS),
)


@given(st.dictionaries(st.sampled_from(sorted(HEADER)), LIES, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_header_that_lies_about_arrays_is_seen(lies: dict[str, dict[str, Any]]) -> None:
    header = {name: entry | lies.get(name, {}) for name, entry in HEADER.items()}
    try_frame(with_header(json.dumps(header).encode()))


@given(st.sampled_from(sorted(HEADER)), st.recursive(NUMBERS, lambda inner: st.lists(inner), max_leaves=5))
@settings(max_examples=100, deadline=None)
def test_a_header_with_anything_in_an_arrays_place_is_refused(name: str, value: Any) -> None:
    refused(with_header(json.dumps(HEADER | {name: value}).encode()))


@given(st.sampled_from(sorted(ARRAYS)), st.data())
@settings(max_examples=500, deadline=None)
def test_any_values_in_an_array_are_a_group_or_an_error(name: str, data: st.DataObject) -> None:
    raw = ARRAYS[name].tobytes()
    if name == "rest":
        changed = data.draw(st.binary(min_size=len(raw), max_size=len(raw)))
    else:
        words = st.sampled_from([0, 1, 2, 3, 0xFF, 0x7C00, 0xFC00, 0x7E00, 0x7F80, 0xFFFF, 0x8000])
        drawn = data.draw(st.lists(words, min_size=len(raw) // 2, max_size=len(raw) // 2))
        changed = np.array(drawn, dtype="<u2").tobytes()
    array = np.frombuffer(changed, ARRAYS[name].dtype).reshape(ARRAYS[name].shape)
    try_frame(container.write(ARRAYS | {name: array}, "none"))


def test_duplicate_keys_are_refused() -> None:
    text = json.dumps(HEADER)
    again = json.dumps({"tokens": HEADER["tokens"]})
    assert "twice" in str(refused(with_header((text[:-1] + "," + again[1:]).encode())))


def moved(name: str, by: int) -> bytes:
    entry = HEADER[name]
    begin, end = entry["data_offsets"]
    return with_header(json.dumps(HEADER | {name: entry | {"data_offsets": [begin + by, end + by]}}).encode())


@pytest.mark.parametrize("by", [-4, -1, 1, 4, 1 << 40])
def test_arrays_that_overlap_or_lie_outside_are_refused(by: int) -> None:
    assert refused(moved("masks", by)).code == "wire.bad_encoding"
    assert refused(moved("rest", by)).code == "wire.bad_encoding"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"a":' * 100_000, id="deep objects"),
        pytest.param(b"\xff\xfe{}", id="no text"),
        pytest.param(b"9" * 10_000, id="a long number"),
        pytest.param(b"{}", id="no metadata"),
        pytest.param(b'{"__metadata__":{"format":"pt"}}', id="another format"),
    ],
)
def test_a_header_that_is_none_is_refused(text: bytes) -> None:
    assert refused(with_header(text)).code == "wire.bad_encoding"


def test_another_version_or_codec_is_named() -> None:
    metadata = HEADER["__metadata__"]
    version = refused(
        with_header(json.dumps(HEADER | {"__metadata__": metadata | {"version": "2"}}).encode())
    )
    assert (version.got, version.expected) == ("'2'", "1")
    codec = refused(with_header(json.dumps(HEADER | {"__metadata__": metadata | {"codec": "xz"}}).encode()))
    assert codec.got == "'xz'"


def int32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("lengths", {"lengths": None}),
        ("rest", {"rest": None}),
        ("distill.counts", {"distill.starts": int32(0, 0)}),
        ("masks", {"masks": int32(0, 0, 0, 0)}),
        ("tokens", {"tokens": int32(0, 0, 0).reshape(3, 1)}),
        ("ref_logprobs", {"ref_logprobs": int32(0, 0, 0)}),
        ("extra", {"extra": int32(0)}),
        ("teachers.2.tokens", {"teachers.2.tokens": int32(0)}),
        ("tokens[0]", {"lengths": int32(0, 3)}),
        ("tokens[0]", {"lengths": int32(-1, 4)}),
        ("tokens", {"lengths": int32(2, 2)}),
        ("tokens", {"lengths": int32()}),
        ("teachers[0].counts[1]", {"teachers.0.counts": int32(0, 2)}),
        ("teachers[0].counts[0]", {"teachers.0.starts": int32(2, 0)}),
        ("teachers[0].counts", {"teachers.0.counts": int32(1, 0)}),
        ("teachers[0].logprobs", {"teachers.0.logprobs": np.zeros((2, 3), np.float16)}),
        ("teachers.1.lengths", {"teachers.1.lengths": int32(5, -1)}),
        ("teachers.1.lengths", {"teachers.1.lengths": int32(4)}),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(where: str, changes: dict[str, Any]) -> None:
    arrays = {name: array for name, array in (ARRAYS | changes).items() if array is not None}
    assert refused(container.write(arrays, "none")).where == where


@pytest.mark.parametrize(
    ("where", "rest"),
    [
        ("rest", b"[]"),
        ("rest", b'{"scores": [1, NaN]}'),
        ("rest", b'{"scores": [1, 2], "images": ' + b"[" * 500 + b"]" * 500 + b"}"),
        ("scores", b"{}"),
        ("scores", b'{"scores": [1]}'),
        ("scores", b'{"scores": [1, true]}'),
        ("scores", b'{"scores": [1, 1' + b"0" * 400 + b"]}"),
        ("scores[1]", b'{"scores": [1, 1e999]}'),
        ("teachers", b'{"scores": [1, 2], "teachers": {}}'),
        ("teachers", b'{"scores": [1, 2], "teachers": [1]}'),
        ("tokens", b'{"scores": [1, 2], "tokens": []}'),
        ("distill_logprobs", b'{"scores": [1, 2], "distill_logprobs": [[[1]]]}'),
        ("teachers[0].logprobs", b'{"scores": [1, 2], "teachers": [{"logprobs": []}]}'),
        ("teachers[0].weight", b'{"scores": [1, 2], "teachers": [{"weight": 1e999}]}'),
        ("env_id", b'{"scores": [1, 2], "env_id": "3"}'),
        ("env_id", b'{"scores": [1, 2], "env_id": 99999999999999999999}'),
        ("group_id", b'{"scores": [1, 2], "group_id": ""}'),
        ("messages[0][0].content", b'{"scores": [1, 2], "messages": [[{"role": "user"}]]}'),
        ("overrides", b'{"scores": [1, 2], "overrides": [{}]}'),
        ("advantages", b'{"scores": [1, 2], "advantages": [[1]]}'),
        ("images" + "[0]" * 15, b'{"scores": [1, 2], "images": ' + b"[" * 16 + b"]" * 16 + b"}"),
    ],
)
def test_a_rest_that_breaks_the_contract_is_refused_by_its_path(where: str, rest: bytes) -> None:
    names = ("lengths", "tokens", "masks")
    arrays = {name: ARRAYS[name] for name in names} | {"rest": np.frombuffer(rest, np.uint8)}
    assert refused(container.write(arrays, "none")).where == where


def packed(header: dict[str, Any], size: int, compressed: bytes) -> bytes:
    """A zstd frame of one uint8 array, for a ``compressed`` that may be anything."""
    metadata = {"format": "atropos-group", "version": "1", "codec": "zstd"}
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    return with_header(json.dumps({"__metadata__": metadata, "rest": entry} | header).encode(), compressed)


def peak_of(frame: bytes) -> int:
    tracemalloc.start()
    refused(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_zstd_bomb_is_refused_before_it_is_inflated() -> None:
    size = 256 << 20
    compressor = zstandard.ZstdCompressor().compressobj(size=size)
    block = bytes(1 << 20)
    parts = [compressor.compress(block) for _ in range(256)]
    bomb = packed({}, size, b"".join([*parts, compressor.flush()]))
    assert len(bomb) < 1 << 20
    assert refused(bomb).code == "wire.too_large"
    assert peak_of(bomb) < 8 << 20


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(zstandard.compress(bytes(99)), id="declares less"),
        pytest.param(zstandard.compress(bytes(101)), id="declares more"),
        pytest.param(
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100)), id="declares nothing"
        ),
        pytest.param(zstandard.compress(bytes(100)) + b"x", id="rest behind it"),
        pytest.param(zstandard.compress(bytes(100)) * 2, id="two frames"),
        pytest.param(zstandard.compress(bytes(range(100)))[:-3], id="cut off"),
        pytest.param(bytes(100), id="no zstd"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_zstd_data_that_is_not_what_the_header_says_is_refused(data: bytes) -> None:
    assert refused(packed({}, 100, data)).code == "wire.bad_encoding"


def test_more_sequences_than_allowed_are_not_even_listed() -> None:
    arrays = {"lengths": np.ones(1 << 21, np.int32), "rest": np.frombuffer(b"{}", np.uint8)}
    frame = container.write(arrays, "none")
    assert refused(frame).code == "wire.too_large"
    assert peak_of(frame) < 4 << 20


def test_a_rest_of_a_million_values_is_not_parsed() -> None:
    rest = b'{"scores": [' + b"1," * (4 << 20) + b"1]}"
    arrays = {name: ARRAYS[name] for name in ("lengths", "tokens", "masks")}
    frame = container.write(arrays | {"rest": np.frombuffer(rest, np.uint8)}, "zstd")
    assert refused(frame).code == "wire.too_large"
    assert peak_of(frame) < 40 << 20


@pytest.mark.parametrize(
    ("where", "limits"),
    [
        (None, Limits(header_bytes=100)),
        (None, Limits(inflated_bytes=100)),
        ("tokens", Limits(sequences=1)),
        ("tokens[0]", Limits(tokens=1)),
        ("teachers[1].tokens[0]", Limits(tokens=2)),
        ("teachers", Limits(teachers=1)),
        ("teachers[0]", Limits(columns=1)),
        (None, Limits(cells=5)),
        ("rest", Limits(rest_values=3)),
        ("messages[0][0]", Limits(json_depth=3)),
    ],
)
def test_what_is_beyond_a_limit_is_too_large(where: str | None, limits: Limits) -> None:
    error = refused(PLAIN, limits)
    assert (error.code, error.where) == ("wire.too_large", where)


def test_frames_of_a_batch_may_not_become_large_together() -> None:
    zeros = [np.zeros(1000, np.int32).tolist()] * 40
    frame = encode_group({"tokens": zeros, "masks": zeros, "scores": [0.0] * 40})
    limits = Limits(ratio_floor_bytes=1 << 20, ratio=100)
    assert len(read_batch(encode_batch([frame] * 3), limits)) == 3
    with pytest.raises(WireError) as caught:
        read_batch(encode_batch([frame] * 4), limits)
    assert caught.value.code == "wire.too_large"

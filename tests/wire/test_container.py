"""The layout of a frame: what the safetensors library reads, and what lies where."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zstandard
from safetensors import safe_open
from safetensors.numpy import load

from atroposlib.errors import WireError
from atroposlib.wire import container

ARRAYS = {
    "bytes": np.arange(7, dtype=np.uint8),
    "halves": np.array([[0.5, -1.5, -np.inf]], dtype=np.float16),
    "ids": np.array([[1, -1], [2**31 - 1, 0]], dtype=np.int32),
    "nothing": np.empty((0, 3), dtype=np.float32),
    "floats": np.array([1e-30, -2.5], dtype=np.float32),
}


def test_the_safetensors_library_reads_a_plain_frame(tmp_path: Path) -> None:
    frame = container.write(ARRAYS, "none")
    read = load(frame)
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    (tmp_path / "frame").write_bytes(frame)
    with safe_open(tmp_path / "frame", framework="numpy") as opened:
        assert opened.metadata() == {"format": "atropos-group", "version": "1", "codec": "none"}


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_arrays_come_back_as_they_were(codec: container.Codec) -> None:
    read = container.read(container.write(ARRAYS, codec))
    assert read.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(read[name], array)
        assert not read[name].flags.writeable


def test_data_starts_at_64_bytes_and_every_array_at_its_size() -> None:
    frame = container.write(ARRAYS, "none")
    start = 8 + int.from_bytes(frame[:8], "little")
    header = json.loads(frame[8:start])
    assert start % 64 == 0
    del header["__metadata__"]
    ends = [0]
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == ends[-1]
        assert begin % ARRAYS[name].itemsize == 0
        ends.append(end)
    assert start + ends[-1] == len(frame)
    assert container.sizes(frame) == {name: array.nbytes for name, array in ARRAYS.items()}


def test_zstd_leaves_the_header_plain_and_the_data_of_known_size() -> None:
    plain, packed = container.write(ARRAYS, "none"), container.write(ARRAYS, "zstd")
    start = 8 + int.from_bytes(packed[:8], "little")
    header = json.loads(packed[8:start])
    assert header.pop("__metadata__")["codec"] == "zstd"
    plain_start = 8 + int.from_bytes(plain[:8], "little")
    assert zstandard.frame_content_size(packed[start:]) == len(plain) - plain_start
    assert zstandard.ZstdDecompressor().decompress(packed[start:]) == plain[plain_start:]


def test_a_frame_is_read_wherever_it_lies() -> None:
    frame = container.write(ARRAYS, "none")
    moved = memoryview(b"x" + frame)[1:]
    np.testing.assert_array_equal(container.read(moved)["floats"], ARRAYS["floats"])


def test_views_do_not_copy_a_plain_frame() -> None:
    frame = bytearray(container.write(ARRAYS, "none"))
    ids = container.read(memoryview(frame))["ids"]
    frame[8 + int.from_bytes(frame[:8], "little")] ^= 2
    assert ids[0, 0] == 3


def test_what_would_look_like_a_bomb_is_not_compressed() -> None:
    zeros = {"zeros": np.zeros(3 << 20, dtype=np.int32)}
    frame = container.write(zeros, "zstd")
    assert container.read(frame)["zeros"].nbytes == 12 << 20


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(WireError):
        container.write(ARRAYS, "gzip")  # type: ignore[arg-type]


def test_threads_do_not_share_a_compressor() -> None:
    rng = np.random.default_rng(0)
    groups = [{"ids": rng.integers(0, 50, 50_000, dtype=np.int32)} for _ in range(16)]
    expected = [container.write(arrays, "zstd") for arrays in groups]
    with ThreadPoolExecutor(8) as pool:
        frames = list(pool.map(container.write, groups * 4, ["zstd"] * 64))
        assert frames == expected * 4
        for arrays, read in zip(groups * 4, pool.map(container.read, frames), strict=True):
            np.testing.assert_array_equal(read["ids"], arrays["ids"])

"""Decompression stops at its limit and tells every broken body."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest

from atroposlib.errors import WireError
from atroposlib.wire.limits import Limits, inflate_gzip

TEXT = b"The quick brown fox jumps over the lazy dog. " * 50


def test_a_body_as_large_as_the_limit_is_inflated() -> None:
    assert inflate_gzip(gzip.compress(TEXT), len(TEXT)) == TEXT


def test_several_gzip_members_are_one_body() -> None:
    assert inflate_gzip(gzip.compress(TEXT[:700]) + gzip.compress(TEXT[700:]), len(TEXT)) == TEXT


@pytest.mark.parametrize("split", [0, 700])
def test_one_byte_above_the_limit_is_too_large(split: int) -> None:
    members = gzip.compress(TEXT[:split]) + gzip.compress(TEXT[split:])
    with pytest.raises(WireError) as caught:
        inflate_gzip(members, len(TEXT) - 1)
    assert caught.value.code == "wire.too_large"


def test_a_bomb_is_refused_after_a_few_mib_however_large_the_limit() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(WireError) as caught:
        inflate_gzip(bomb, 512 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == "wire.too_large"
    assert peak < 12 << 20


def test_a_bomb_behind_an_honest_member_is_refused() -> None:
    honest = gzip.compress(random.Random(0).randbytes(100_000))
    with pytest.raises(WireError) as caught:
        inflate_gzip(honest + gzip.compress(bytes(40 << 20)), 512 << 20)
    assert caught.value.code == "wire.too_large"


def test_the_ratio_counts_beyond_its_floor() -> None:
    body = gzip.compress(bytes(30_000))
    assert len(inflate_gzip(body, 1 << 20, Limits(ratio=10, ratio_floor_bytes=30_000))) == 30_000
    with pytest.raises(WireError) as caught:
        inflate_gzip(body, 1 << 20, Limits(ratio=10, ratio_floor_bytes=29_999))
    assert caught.value.code == "wire.too_large"


def test_many_small_members_are_one_body() -> None:
    assert inflate_gzip(gzip.compress(b"x") * 20_000, 1 << 20) == b"x" * 20_000


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="plain"),
        pytest.param(gzip.compress(TEXT)[:-9], id="cut off in the data"),
        pytest.param(gzip.compress(TEXT)[:-4], id="cut off in the trailer"),
        pytest.param(gzip.compress(TEXT)[:30] + b"\xff" * 40, id="corrupt data"),
        pytest.param(gzip.compress(TEXT)[:-8] + bytes(8), id="wrong checksum"),
        pytest.param(gzip.compress(TEXT) + b"rest", id="rest behind the member"),
    ],
)
def test_a_broken_body_is_told_as_such(body: bytes) -> None:
    with pytest.raises(WireError) as caught:
        inflate_gzip(body, 1 << 20)
    assert caught.value.code == "wire.bad_encoding"

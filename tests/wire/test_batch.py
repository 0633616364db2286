"""The body of a batch: frames in order, aligned, and recognised when it was cut off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.errors import WireError
from atroposlib.wire.batch import END, decode_batch, encode_batch, record_parts, split_batch
from atroposlib.wire.frame import encode_group
from tests.wire.support import rich, small

frames = st.lists(st.binary(min_size=1, max_size=200), max_size=4)


@given(frames)
def test_frames_come_out_as_they_went_in(parts: list[bytes]) -> None:
    assert [bytes(frame) for frame in split_batch(encode_batch(parts))] == parts


@given(frames)
def test_a_batch_is_the_records_one_after_the_other_and_an_end(parts: list[bytes]) -> None:
    streamed = b"".join(part for frame in parts for part in record_parts(frame)) + END
    assert streamed == encode_batch(parts)
    assert len(streamed) % 64 == 0


def test_every_frame_starts_at_a_multiple_of_64() -> None:
    body = encode_batch([b"a" * 3, b"b" * 64, b"c" * 65])
    assert [body.index(letter) for letter in (b"aaa", b"bbb", b"ccc")] == [64, 192, 320]
    assert body[:64] == (3).to_bytes(8, "little") + bytes(56)


@given(frames, st.data())
def test_a_batch_that_was_cut_off_is_refused(parts: list[bytes], data: st.DataObject) -> None:
    body = encode_batch(parts)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(WireError) as caught:
        split_batch(body[:cut])
    assert caught.value.code == "wire.bad_encoding"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(encode_batch([b"abc"]) + b"x", id="rest behind the end"),
        pytest.param(encode_batch([b"abc"]) + encode_batch([b"abc"]), id="two batches"),
        pytest.param((2**64 - 1).to_bytes(8, "little") + bytes(120), id="a length beyond all bytes"),
        pytest.param((3).to_bytes(8, "little") + b"x" * 56 + bytes(128), id="a prefix that is not zero"),
        pytest.param(b'{"batch": []}' + bytes(115), id="JSON"),
    ],
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        split_batch(body)


def test_groups_are_decoded_in_order() -> None:
    groups = decode_batch(encode_batch([encode_group(rich()), encode_group(small(env_id=5))]))
    assert [group.rest["env_id"] for group in groups] == [3, 5]
    assert groups[0].tokens[0].tolist() == [1, 2]

"""The decoder on docs/wire.md reads what atroposlib writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.wire.batch import encode_batch
from atroposlib.wire.container import Codec
from atroposlib.wire.frame import encode_group
from atroposlib.wire.limits import DEFAULT
from atroposlib.wire.media import BATCH_TYPE, FRAME_TYPE
from tests.wire.support import rich, small

PAGE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")
SOURCE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    return names


def test_it_is_short() -> None:
    assert len(SOURCE.splitlines()) <= 30


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_it_reads_a_frame(page: dict[str, Any], codec: Codec) -> None:
    arrays, rest = page["decode"](encode_group(rich(), codec=codec))
    expected = {
        "lengths": [2, 1],
        "tokens": [1, 2, 3],
        "masks": [-100, 2, 3],
        "advantages": [0.5, -0.5, 1.0],
        "ref_logprobs": [0.0, -1.5, -2.0],
        "inference_logprobs": [1.0, -0.25, -0.75],
        "teachers.0.starts": [1, 0],
        "teachers.0.counts": [1, 1],
        "teachers.0.token_ids": [[2, 9], [3, -1]],
        "teachers.0.logprobs": [[-0.5, -1.25], [-0.125, -np.inf]],
        "teachers.1.starts": [1, 0],
        "teachers.1.counts": [2, 1],
        "teachers.1.token_ids": [[12], [13], [14]],
        "teachers.1.logprobs": [[-0.5], [-0.25], [-1.0]],
        "teachers.1.lengths": [3, 1],
        "teachers.1.tokens": [11, 12, 13, 14],
        "teachers.1.student_chunk_id": [0, 1, 0],
        "teachers.1.teacher_chunk_id": [0, 1, 1, 0],
    }
    assert {name: array.tolist() for name, array in arrays.items()} == expected
    assert arrays["teachers.0.logprobs"].dtype == np.float16
    assert rest == {
        "scores": [0.5, 1.0],
        "messages": [[{"role": "user", "content": "2 + 2, please"}]],
        "overrides": [{}, {"set_advantage_to_zero": True}],
        "env_id": 3,
        "group_id": "a-group",
        "policy_version": 7,
        "teachers": [
            {"name": "same", "weight": 1.0, "same_tokenizer": True},
            {"name": "other", "same_tokenizer": False},
        ],
    }


def test_it_splits_a_batch(page: dict[str, Any]) -> None:
    frames = [encode_group(rich()), encode_group(small(), codec="none")]
    assert list(page["split"](encode_batch(frames))) == frames


def test_the_page_names_the_media_types_and_the_limits() -> None:
    assert FRAME_TYPE in PAGE
    assert BATCH_TYPE in PAGE
    counts = [DEFAULT.sequences, DEFAULT.tokens, DEFAULT.columns, DEFAULT.teachers]
    mebi = [DEFAULT.body_bytes, DEFAULT.inflated_bytes, DEFAULT.ratio_floor_bytes, DEFAULT.header_bytes]
    assert ", ".join(f"{count:,}" for count in counts) in PAGE
    for value in mebi:
        assert f"{value >> 20} MiB" in PAGE
    for value in (DEFAULT.cells, DEFAULT.json_values, DEFAULT.rest_values):
        assert f"{value >> 20} Mi" in PAGE
    assert f"{DEFAULT.ratio} : 1" in PAGE
    assert f"| nesting of JSON | {DEFAULT.json_depth} |" in PAGE

"""What a teacher with another tokenizer said reaches a trainer as it was, whichever way it goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.trainer.client import TrainerClient
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import FRAME_TYPE
from tests.api.support import ApiClient, registration, serving

CHUNKS = {"student_chunk_id": [[-1, 0, 1, 1], [-1, -1, -1]], "teacher_chunk_id": [[-1, -1, 0, 0, 1], []]}
ENTRY: dict[str, Any] = {
    "name": "big",
    "weight": 0.5,
    "model": "a model",
    "tokenizer_fingerprint": "f" * 32,
    "same_tokenizer": False,
    "temperature": 1.0,
    "tokens": [[90, 91, 92, 93, 94], []],
    "token_ids": [[[-1, -1], [-1, -1], [92, 7], [93, -1], [94, 3]], []],
    "logprobs": [[[-9999.0] * 2, [-9999.0] * 2, [-0.5, -1.5], [-0.25, -9999.0], [-3.0, -0.125]], []],
    **CHUNKS,
}
SILENT = {"name": "same", "weight": 1.0, "same_tokenizer": True}
PROJECTED = {
    "distill_token_ids": [[[-1, -1], [2, 9], [-1, -1], [-1, -1]], [[-1, -1]] * 3],
    "distill_logprobs": [[[-9999.0] * 2, [-0.5, -1.5], [-9999.0] * 2, [-9999.0] * 2], [[-9999.0] * 2] * 3],
}
GROUP: dict[str, Any] = {
    "tokens": [[1, 2, 3, 4], [5, 6, 7]],
    "masks": [[-100, 2, 3, 4], [-100, -100, -100]],
    "scores": [0.0, 1.0],
    "teachers": [SILENT, ENTRY],
    **PROJECTED,
}


@pytest.fixture(params=["memory", "sqlite"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiClient]:
    store = "memory" if request.param == "memory" else f"sqlite:///{tmp_path / 'queue.sqlite3'}"
    with serving(store) as client:
        yield client


@pytest.fixture(params=["json", "frame"])
def posted(request: pytest.FixtureRequest, api: ApiClient) -> ApiClient:
    """The API with the group in its queue."""
    api.start(batch_size=2)
    if request.param == "json":
        api.post("/scored_data", GROUP)
        return api
    arrays: Any = GROUP
    frame = encode_group(to_arrays(arrays, strict=True), logprob_dtype="float32")
    answer = api.raw("POST", "/v1/groups", frame, Content_Type=FRAME_TYPE)
    assert answer.status_code == 201, answer.text
    return api


def test_a_leased_batch_has_the_chunks_and_rows(posted: ApiClient) -> None:
    client = TrainerClient(posted.url)
    try:
        client.register(registration(batch_size=2), "me")
        batch = client.lease()
    finally:
        client.close()
    assert batch is not None
    [group] = batch.groups
    same, big = group.teachers
    assert same.targets is None
    assert group.targets is not None
    # What was projected is nobody's entry.
    assert group.targets is not big.targets
    assert group.targets.ids.tolist() == [[2, 9]]
    assert big.tokens is not None
    assert big.targets is not None
    assert [row.tolist() for row in big.tokens] == ENTRY["tokens"]
    for name, expected in CHUNKS.items():
        assert [row.tolist() for row in getattr(big, name)] == expected
    assert (big.targets.starts.tolist(), big.targets.counts.tolist()) == ([2, 0], [3, 0])
    assert big.targets.ids.tolist() == [[92, 7], [93, -1], [94, 3]]
    np.testing.assert_array_equal(big.targets.logprobs[:, 0], np.float32([-0.5, -0.25, -3.0]))
    assert {name: ENTRY[name] for name in big.facts} == dict(big.facts)


def test_an_atropos_batch_has_them_as_lists(posted: ApiClient) -> None:
    [group] = posted.get("/batch")["batch"]
    assert group["teachers"][1] == ENTRY
    assert not {"token_ids", "logprobs"} & group["teachers"][0].keys()
    assert group["distill_token_ids"] == PROJECTED["distill_token_ids"]
    assert group["distill_logprobs"] == PROJECTED["distill_logprobs"]

"""The figures of GET /status-env are those that a real atroposlib 0.4.0 answered in the same situations.

``status_env_0_4_0.json`` holds its replies to seeded random registrations and posts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import ApiClient, group

RECORDED = json.loads((Path(__file__).parent / "status_env_0_4_0.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("situation", RECORDED, ids=range(len(RECORDED)))
def test_the_figures_are_those_of_0_4_0(api: ApiClient, situation: dict[str, Any]) -> None:
    api.start(batch_size=situation["batch_size"], starting_step=situation["step"])
    for registration in situation["envs"]:
        api.add_env(**registration)
    for env_id, sequences in situation["posts"]:
        api.post("/scored_data", group(sequences, env_id=env_id))
    # Here an environment that posts is back, so the last word of those that left is that they leave.
    for env_id in situation["disconnected"]:
        api.post("/disconnect-env", {"env_id": env_id})
    for env_id, expected in enumerate(situation["answers"]):
        if expected is not None:
            assert api.get("/status-env", {"env_id": env_id}) == expected

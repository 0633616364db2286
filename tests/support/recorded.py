"""Access to the recorded replies of a real vLLM 0.32."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "vllm_0_32"


@cache
def recordings(group: str) -> dict[str, dict[str, Any]]:
    """All replies of ``group``: name -> {"status", "body"}."""
    loaded: dict[str, dict[str, Any]] = json.loads((DATA / f"{group}.json").read_text(encoding="utf-8"))
    return loaded


def recorded_body(group: str, name: str) -> Any:
    """The JSON body of one recorded reply."""
    return recordings(group)[name]["body"]

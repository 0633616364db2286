"""A real teacher with another tokenizer than SmolLM2: Gemma 3 270M, the demo's; a test never downloads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atroposlib.demo.assets import GEMMA, model_place


def directory() -> Path:
    """Where the model is, or would be: $ATROPOS_TEST_GEMMA, or its place in the demo's cache."""
    named = os.environ.get("ATROPOS_TEST_GEMMA")
    return Path(named).expanduser() if named else model_place(GEMMA)


@pytest.fixture(scope="session")
def gemma_dir() -> Path:
    """Directory of Gemma 3 270M; skips the test where there is none."""
    found = directory()
    if not found.is_dir():
        pytest.skip("no Gemma 3 270M: run `python -m tests.support.assets` once, or set ATROPOS_TEST_GEMMA")
    return found

"""The real small model, where a test may have it: never downloaded by a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def find_smollm() -> Path | None:
    """Directory of SmolLM2-135M-Instruct: $ATROPOS_TEST_MODEL, or what the demo fetched into its cache."""
    from atroposlib.demo.assets import cache_dir

    if named := os.environ.get("ATROPOS_TEST_MODEL"):
        return Path(named).expanduser()
    found = sorted((cache_dir() / "models").glob("smollm2-135m-instruct-*/config.json"))
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def smollm_dir() -> Path:
    """Directory of the real small model; skips the test where there is none."""
    directory = find_smollm()
    if directory is None or not directory.is_dir():
        pytest.skip("SmolLM2-135M-Instruct is not here: run `atropos demo` once, or set ATROPOS_TEST_MODEL")
    return directory

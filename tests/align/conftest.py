"""A cache of byte tables that is each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where read_vocabulary keeps its tables in this test."""
    directory = tmp_path / "cache" / "vocabularies"
    monkeypatch.setattr("atroposlib.align.cache.default_directory", lambda: directory)
    return directory

"""A cache of byte tables that is each test's own, and real tokenizers that are loaded once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import real_tokenizers


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where read_vocabulary keeps its tables in this test."""
    directory = tmp_path / "cache" / "vocabularies"
    monkeypatch.setattr("atroposlib.align.tables.cache.default_directory", lambda: directory)
    return directory


@pytest.fixture(scope="session")
def loaded() -> Callable[[str], Any]:
    """``loaded(name)``: a real tokenizer as transformers loads it; skips by name where it is not here."""
    return real_tokenizers.loaded

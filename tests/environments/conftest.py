"""Environment files are imported as scripts import each other: from their own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "environments"


@pytest.fixture(autouse=True)
def _environments_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def sample_path() -> Path:
    """The first problems of GSM8K's training set."""
    return Path(__file__).parents[1] / "data" / "gsm8k_sample.jsonl"

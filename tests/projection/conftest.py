"""A cache of byte tables that is each test's own, and small vocabularies whose spellings are known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atroposlib.projection.speller import Speller
from atroposlib.projection.splits import Splits, split
from tests.support.real_tokenizers import byte_table, directory_of
from tests.support.tokenizer_files import FAMILIES, write

SpellerOf = Callable[[str], Speller]


@functools.cache
def _real(name: str) -> Speller:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atroposlib.projection.speller.vocabulary_of", lambda _: byte_table(name))
        return Speller(directory_of(name))


@functools.cache
def _real_splits(source: str, target: str) -> Splits:
    return split(_real(source), _real(target))


@pytest.fixture(scope="session")
def real_speller() -> SpellerOf:
    """The speller of a real tokenizer, made once; skips by name where it is not here."""
    return _real


@pytest.fixture(scope="session")
def real_splits() -> Callable[[str, str], Splits]:
    """How the tokens of one real vocabulary are spelled in those of another, made once."""
    return _real_splits


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where read_vocabulary keeps its tables in this test."""
    directory = tmp_path / "cache" / "vocabularies"
    monkeypatch.setattr("atroposlib.align.tables.cache.default_directory", lambda: directory)
    return directory


@pytest.fixture
def family_dir(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the tokenizer of a family; returns its directory."""

    def written(family: str, config: dict[str, Any] | None = None) -> Path:
        return write(tmp_path / family, FAMILIES[family], config)

    return written


@pytest.fixture
def speller(family_dir: Callable[[str], Path]) -> SpellerOf:
    """The speller of a family's tokenizer."""
    return lambda family: Speller(family_dir(family))

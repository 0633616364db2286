"""Byte tables of their own, and no table or encoder made twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import collators


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the byte tables of these tests are kept."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(autouse=True, scope="module")
def _own_tables(tables: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atroposlib.align.tables.cache.default_directory", lambda: tables)
        patch.setattr("atroposlib.collate.cross_tokenizer.sides.TextEncoder", collators.encoder)
        patch.setattr("atroposlib.collate.cross_tokenizer.sides.vocabulary_of", collators.table)
        yield


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Two small tokenizers, of which the first has one token more."""
    return collators.small_pair(tmp_path_factory.mktemp("small"))

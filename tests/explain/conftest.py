"""Two small chat tokenizers that cut one text differently: bytes, and bytes with "ab" in one token."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny import CHAT_TEMPLATE, write_tokenizer
from tests.support.tokenizers import merging_tokenizer

TEACHER_TEMPLATE = (
    "<|endoftext|>{% for message in messages %}<|im_start|>{{ message['role'] | upper }}: "
    "{{ message['content'] }}<|im_end|>{% endfor %}"
)


@pytest.fixture(scope="session")
def tables_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where these tests keep byte tables: those of real tokenizers take seconds to build."""
    return tmp_path_factory.mktemp("cache") / "vocabularies"


@pytest.fixture(autouse=True)
def _own_cache(tables_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atroposlib.align.tables.cache.default_directory", lambda: tables_dir)


def _written(directory: Path, write: Callable[[Path], object], template: str) -> Path:
    directory.mkdir()
    write(directory)
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"chat_template": template}
    file.write_text(json.dumps(config), encoding="utf-8")
    return directory


@pytest.fixture
def student_dir(tmp_path: Path) -> Path:
    """A token for each byte."""
    return _written(tmp_path / "student", write_tokenizer, CHAT_TEMPLATE)


@pytest.fixture
def teacher_dir(tmp_path: Path) -> Path:
    """The same with "ab" as one token more, and other words in its template."""
    return _written(tmp_path / "teacher", merging_tokenizer, TEACHER_TEMPLATE)

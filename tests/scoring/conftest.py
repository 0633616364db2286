"""A real model server as the teacher, and the tokenizer that it shares with the student."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_model_server import running_model_server
from tests.support.tiny import write_tokenizer


@pytest.fixture(scope="session")
def teacher_url(tiny_model_dir: Path) -> Iterator[str]:
    """URL of a model server with the tiny model."""
    with running_model_server(tiny_model_dir) as url:
        yield url


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny model's tokenizer: byte b is id b, 258 ends a turn."""
    from transformers import PreTrainedTokenizerFast

    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return PreTrainedTokenizerFast.from_pretrained(str(directory))

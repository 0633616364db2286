"""Fixtures that several test folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a random tiny Llama with a byte-level tokenizer of 300 ids."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")

"""Fixtures of the environment tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from atroposlib.envs.base import BaseEnv
from tests.envs.fakes import FakeApi, ToyConfig, ToyEnv, fake_api
from tests.support.tiny import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the byte-level tokenizer alone."""
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return directory


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """A trajectory API in this event loop."""
    async with fake_api() as running:
        yield running


@pytest.fixture
def make_env(tokenizer_dir: Path) -> Callable[..., Any]:
    """Builds an environment without model servers; keywords are its settings."""

    def make(
        env_cls: type[BaseEnv] = ToyEnv, config_cls: type[ToyConfig] = ToyConfig, **settings: Any
    ) -> Any:
        config = config_cls(tokenizer_name=str(tokenizer_dir), **settings)
        return env_cls(config, [], slurm=False, testing=True)

    return make

"""Fixtures of the trainer's tests."""

from __future__ import annotations

import pytest

from tests.trainer.losses import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A student, its teachers and their groups."""
    return make_world(tmp_path_factory.mktemp("world"))

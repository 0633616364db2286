"""Work on large bodies leaves the event loop's thread, work on small ones does not."""

from __future__ import annotations

import threading

import pytest

from atroposlib.api.offload import LARGE_BYTES, Offload


@pytest.mark.parametrize(("size", "here"), [(LARGE_BYTES - 1, True), (LARGE_BYTES, False)])
async def test_only_large_work_leaves_the_loop(size: int, here: bool) -> None:
    offload = Offload()
    try:
        assert (await offload.run(size, threading.get_ident) == threading.get_ident()) == here
    finally:
        offload.close()


@pytest.mark.parametrize("size", [0, LARGE_BYTES])
async def test_errors_come_back(size: int) -> None:
    offload = Offload()
    try:
        with pytest.raises(ValueError, match="invalid literal"):
            await offload.run(size, int, "x")
    finally:
        offload.close()

"""Runs an environment's coroutine in an event loop until it ends or a signal ends it in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from atroposlib.errors import EXIT_INTERRUPTED, EXIT_OK

logger = logging.getLogger(__name__)


def run_to_end(main: Coroutine[Any, Any, None]) -> int:
    """Run a coroutine; SIGINT and SIGTERM cancel it, so that it closes what it opened.

    Returns:
        0 when it ended by itself or by SIGTERM, 130 after SIGINT.
    """
    return asyncio.run(_supervised(main))


async def _supervised(main: Coroutine[Any, Any, None]) -> int:
    task = asyncio.ensure_future(main)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        logger.info("%s: ending", number.name)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    return EXIT_INTERRUPTED if signal.SIGINT in received else EXIT_OK

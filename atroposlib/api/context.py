"""What the routes of one API share; every app has its own, so nothing is global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request

from atroposlib.api.offload import Offload
from atroposlib.api.run_state import Run
from atroposlib.config.api import ApiSettings
from atroposlib.store.protocol import GroupStore


@dataclass(slots=True)
class ApiContext:
    """The parts of one API.

    Attributes:
        settings: Its settings.
        store: Its queue.
        clock: Seconds that never go backwards.
        run: The state of the run.
        offload: Workers for large bodies.
        refused: Posts of groups refused because they broke the contract.
    """

    settings: ApiSettings
    store: GroupStore
    clock: Callable[[], float]
    run: Run = field(init=False)
    offload: Offload = field(default_factory=Offload)
    refused: int = 0

    def __post_init__(self) -> None:
        self.run = self.new_run()

    def new_run(self) -> Run:
        """The state before any trainer came."""
        return Run(self.settings.env_silent_s, self.settings.minimum_idle_s)


def _context(request: Request) -> ApiContext:
    return cast(ApiContext, request.app.state.context)


Context = Annotated[ApiContext, Depends(_context)]

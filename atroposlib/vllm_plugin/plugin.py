"""The plugin itself: adds our routes to vLLM's application and gives them vLLM's engine."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, ClassVar

from atroposlib.teacher.serving import scores_router
from atroposlib.vllm_plugin.engine import VllmScorer

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient


class AtroposPlugin:
    """What the entry point ``vllm.endpoint_plugins: atropos`` names.

    vLLM loads it when the environment variable ``VLLM_PLUGINS`` names it. The routes lie under /v1, which
    ``--api-key`` covers.
    """

    name: ClassVar[str] = "atropos"
    required_tasks: ClassVar[tuple[str, ...]] = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Add the routes; called before the engine is known."""
        app.include_router(scores_router(_scorer))

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Keep the engine for the routes. Servers without one have no task ``generate``."""
        if engine_client is not None:
            names = args.served_model_name or [args.model]
            state.atropos_scorer = VllmScorer(engine_client, names)


def _scorer(request: Request) -> VllmScorer:
    scorer: VllmScorer = request.app.state.atropos_scorer
    return scorer

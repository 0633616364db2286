"""The real model server on a free port, in a thread of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def running_model_server(model: Path, **settings: Any) -> Iterator[str]:
    """URL of a model server that serves ``model``; ``settings`` are those of ModelServerSettings."""
    import uvicorn

    from atroposlib.config.modelserver import ModelServerSettings
    from atroposlib.modelserver.app import create_app
    from atroposlib.modelserver.build import build_model
    from atroposlib.modelserver.serve import reserve_port

    ready = threading.Event()

    class Server(uvicorn.Server):
        """Says when it answers."""

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready.set()

    served = build_model(ModelServerSettings(model=str(model), **{"device": "cpu", "port": 0, **settings}))
    config = uvicorn.Config(
        create_app(served), log_level="warning", access_log=False, timeout_graceful_shutdown=2
    )
    server = Server(config)
    with reserve_port("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert ready.wait(60), "the model server did not start"
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)

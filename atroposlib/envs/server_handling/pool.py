"""Spreads requests over the servers of a pool: least loaded first, around dead ones, until patience ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import aiohttp

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.server import Server, Split
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.teacher.persistence import Passing, persist
from atroposlib.teacher.transport import Party, Peer, open_session

T = TypeVar("T")


class ServerPool:
    """Servers that can stand in for each other, and the one session that all requests to them share.

    Args:
        configs: One config a server.
        patience_s: Seconds over which a request is repeated while no server can take it.
    """

    def __init__(self, configs: Sequence[APIServerConfig], *, patience_s: float) -> None:
        self.servers = [Server(config) for config in configs]
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession | None = None
        self._watches: dict[int, asyncio.Task[None]] = {}

    @property
    def session(self) -> aiohttp.ClientSession:
        """The shared session, opened in the running loop when first needed."""
        if self._session is None or self._session.closed:
            self._session = open_session()
        return self._session

    async def dispatch(
        self, party: Party, split: Split, ask: Callable[[aiohttp.ClientSession, Peer], Awaitable[T]]
    ) -> T:
        """What ``ask`` returns for the least loaded healthy server; another one where a failure may pass.

        Raises:
            AtroposError: The party's unreachable when no server is healthy within ``patience_s``, or what
                ``ask`` raises.
        """

        async def once() -> T:
            server = await self._pick(party, split)
            async with server.slots[split]:
                return await self._ask(server, party, ask)

        return await persist(once, patience_s=self._patience_s)

    async def _ask(
        self, server: Server, party: Party, ask: Callable[[aiohttp.ClientSession, Peer], Awaitable[T]]
    ) -> T:
        started = asyncio.get_running_loop().time()
        try:
            answer = await ask(self.session, server.peer(party))
        except Passing as failure:
            server.counts["passing"] += 1
            if failure.kind != "interrupted":
                server.suspect(failure)
                self._watch(server, party)
            raise
        except AtroposError:
            server.counts["failed"] += 1
            raise
        server.counts["ok"] += 1
        server.seconds.append(asyncio.get_running_loop().time() - started)
        return answer

    async def _pick(self, party: Party, split: Split) -> Server:
        if not self.servers:
            raise ConfigError("there is no model server to ask", fix="run without testing")
        healthy = [server for server in self.servers if server.server_healthy]
        if not healthy:
            watches = [self._watch(server, party) for server in self.servers]
            await asyncio.wait(watches, timeout=self._patience_s, return_when=asyncio.FIRST_COMPLETED)
            healthy = [server for server in self.servers if server.server_healthy]
        if not healthy:
            raise self._nobody(party)
        # Of equally loaded ones the one whose last failure is longest ago: a repeat tries another first.
        return min(healthy, key=lambda server: (server.slots[split].load, server.failed_at))

    def _nobody(self, party: Party) -> AtroposError:
        told = [
            str(server.last_failure.error.got) for server in self.servers if server.last_failure is not None
        ]
        return party.unreachable(
            f"none of the {len(self.servers)} {party.name} servers can be reached",
            code=party.codes["unreachable"],
            where=", ".join(server.peer(party).root for server in self.servers),
            got=told[-1] if told else None,
            fix="start the server or correct base_url",
        )

    def _watch(self, server: Server, party: Party) -> asyncio.Task[None]:
        """The task that waits for ``server`` to recover."""
        task = self._watches.get(id(server))
        if task is None:
            task = asyncio.create_task(server.recover(self.session, party))
            self._watches[id(server)] = task
            task.add_done_callback(lambda _: self._watches.pop(id(server), None))
        return task

    async def close(self) -> None:
        """End the health checks and close the session."""
        tasks = list(self._watches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of ``calls`` in order; when one fails or the caller is cancelled, the others end too."""
    tasks = [asyncio.ensure_future(one) for one in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise

"""Opens the store that a URL names."""

from __future__ import annotations

from atroposlib.errors import UsageError
from atroposlib.store.memory import MemoryStore
from atroposlib.store.protocol import GroupStore
from atroposlib.store.sqlite import SqliteStore
from atroposlib.store.sqlite_file import Durability

SQLITE = "sqlite:///"


async def open_store(
    url: str, *, max_groups: int, max_bytes: int, durability: Durability = "normal"
) -> GroupStore:
    """Open a store, going on where it was.

    Args:
        url: ``memory``, or ``sqlite:///`` and a path: ``sqlite:///queue.sqlite3`` in the working directory,
            ``sqlite:////var/lib/queue.sqlite3`` elsewhere.
        max_groups: Groups kept from which on posts are refused.
        max_bytes: Payload bytes kept from which on posts are refused.
        durability: What a file survives: ``normal`` a killed process, ``full`` a power cut too.

    Raises:
        UsageError: usage.bad_value for another URL, usage.store and usage.store_in_use as
            :meth:`SqliteStore.open`.
    """
    if url == "memory":
        return MemoryStore(max_groups, max_bytes)
    path = url.removeprefix(SQLITE)
    if path == url or not path:
        raise UsageError(
            "a store that is not known",
            where="store",
            got=repr(url),
            expected=f"memory or {SQLITE}PATH",
        )
    return await SqliteStore.open(path, max_groups, max_bytes, durability=durability)

"""A process that posts, leases and acks without pause, to be killed: prints each promise it was given.

Run as ``python crash_writer.py FILE CYCLE``. Lines: ``put <group>``, ``leased <batch> <groups>``, ``acked
<batch>``, ``committed <batch>``; each is printed after the store has answered.
"""

from __future__ import annotations

import asyncio
import sys
import time

from atroposlib.store.protocol import LeaseRequest
from atroposlib.store.sqlite import SqliteStore
from atroposlib.wire.posted import GroupFacts, PostedGroup

PAYLOAD_BYTES = 64 << 10


def payload_of(group_id: str) -> bytes:
    """Bytes that tell which group they belong to."""
    return (group_id.encode() * (PAYLOAD_BYTES // len(group_id) + 1))[:PAYLOAD_BYTES]


def tell(*words: str) -> None:
    """Tell the parent; flushed, so a killed process has told all that it was promised."""
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


async def post(store: SqliteStore, cycle: str) -> None:
    """Post new groups for ever."""
    number = 0
    while True:
        group_id = f"{cycle}-{number}"
        payload = payload_of(group_id)
        await store.put(
            [PostedGroup(GroupFacts(group_id, 0, 4, None, "json", len(payload)), payload)], time.time()
        )
        tell("put", group_id)
        number += 1


async def train(store: SqliteStore) -> None:
    """Lease, ack and commit for ever; each third batch is left without an ack."""
    number = 0
    while True:
        lease = await store.lease(LeaseRequest("t", 8, 1e9), time.time())
        if lease is None:
            await store.wait(1.0)
            continue
        tell("leased", lease.batch_id, ",".join(facts.group_id for facts in lease.groups))
        if number % 3:
            await store.ack(lease.batch_id, lease.attempt, time.time())
            tell("acked", lease.batch_id)
        if number % 9 == 8:
            await store.commit("t", lease.batch_id, time.time())
            tell("committed", lease.batch_id)
        number += 1


async def sweep(store: SqliteStore) -> None:
    """Delete and checkpoint all the time, so that a kill hits these too."""
    while True:
        await store.sweep(time.time())
        await asyncio.sleep(0.01)


async def main() -> None:
    """Open the store and never end."""
    store = await SqliteStore.open(sys.argv[1], 10**9, 10**12)
    await asyncio.gather(post(store, sys.argv[2]), train(store), sweep(store))


if __name__ == "__main__":
    asyncio.run(main())

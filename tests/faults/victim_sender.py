"""An environment's sender that is killed: posts groups without end, and notes each one that the API took.

Called with the API's URL, a folder and a name that no other call has.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from atroposlib.envs.api_client import TrajectoryApi
from atroposlib.envs.sender import Sender
from atroposlib.types import ScoredDataGroup
from tests.faults.world import small_group

WORKERS = 4


def append(path: Path, line: str) -> None:
    """Add a line to a file."""
    with path.open("a") as file:
        file.write(line)


async def send(sender: Sender, name: str, noted: Path, started: Path) -> None:
    """One worker: each group is noted once its post was answered."""
    number = 0

    async def note(group: ScoredDataGroup) -> None:
        append(noted, f"{group['group_id']}\n")
        append(started, "x")

    while True:
        group = ScoredDataGroup(**small_group(f"{name}-{number}"))
        await sender.deliver([group], as_list=False, on_sent=note)
        number += 1


async def main(url: str, folder: Path, name: str) -> None:
    """Workers at once, as an environment has."""
    api = TrajectoryApi(url)
    sender = Sender(api, on_dropped=lambda group, reason: sys.exit(f"dropped: {reason}"))
    workers = (
        send(sender, f"{name}-{worker}", folder / "acked.txt", folder / "sender.started")
        for worker in range(WORKERS)
    )
    await asyncio.gather(*workers)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))

"""A trainer that is killed: its weights are the list of what it trained, its checkpoint a file.

Called with the API's URL and a folder; ends when the queue is empty.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from atroposlib.trainer.client import TrainerClient
from tests.faults.world import registration

BATCH_SIZE = 4
CHECKPOINT_EVERY = 3
LEASE_S = 2.0


def load(path: Path) -> dict[str, Any]:
    """The last checkpoint, or fresh weights."""
    if not path.exists():
        return {"batch_id": None, "trained": []}
    checkpoint: dict[str, Any] = json.loads(path.read_text())
    return checkpoint


def save(path: Path, weights: dict[str, Any]) -> None:
    """Replace the checkpoint in one step."""
    with path.with_suffix(".new").open("w") as file:
        json.dump(weights, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)


def main(url: str, folder: Path) -> None:
    """Train until nothing is queued."""
    path = folder / "checkpoint.json"
    weights = load(path)
    client = TrainerClient(url)
    client.register(registration(BATCH_SIZE), trainer_id="victim", last_committed=weights["batch_id"])
    unsaved = 0
    while True:
        batch = client.lease(wait_s=0.0, lease_s=LEASE_S)
        # Told after the first lease, so that kills fall into the work and not into the start.
        (folder / "trainer.started").touch()
        if batch is None:
            status = client.status()
            assert status is not None
            if not status["groups"]["queued"] and not status["groups"]["leased"]:
                break
            client.stop.wait(0.02)
            continue
        weights["trained"] += [group.rest["group_id"] for group in batch.groups]
        weights["batch_id"] = batch.batch_id
        client.ack(batch)
        unsaved += 1
        if unsaved == CHECKPOINT_EVERY:
            save(path, weights)
            client.commit(batch.batch_id)
            unsaved = 0
    save(path, weights)
    if weights["batch_id"] is not None:
        client.commit(weights["batch_id"])
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

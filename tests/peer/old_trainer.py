"""Polls batches with the client of Atropos's own example trainer; prints each batch as a line of JSON."""

import importlib.util
import json
import sys
import time
import types
from pathlib import Path
from types import SimpleNamespace


def example_trainer_api():
    """The module ``example_trainer.api`` alone: package and settings import torch, which this needs not."""
    folder = Path(importlib.util.find_spec("atroposlib").origin).parents[1] / "example_trainer"
    package = types.ModuleType("example_trainer")
    package.__path__ = [str(folder)]
    config = types.ModuleType("example_trainer.config")
    config.TrainingConfig = SimpleNamespace
    sys.modules |= {"example_trainer": package, "example_trainer.config": config}
    from example_trainer import api

    return api


def main(url: str, batch_size: int, batches: int) -> None:
    """Register, then poll as the example trainer's loop does."""
    api = example_trainer_api()
    config = SimpleNamespace(
        atropos_url=url,
        wandb_group=None,
        wandb_project=None,
        batch_size=batch_size,
        gradient_accumulation_steps=1,
        seq_len=512,
        save_path="checkpoints",
        checkpoint_interval=0,
        training_steps=batches,
    )
    assert api.check_atropos_api(url)
    api.register_trainer(config)
    taken = 0
    while taken < batches:
        batch = api.get_batch(url)["batch"]
        if batch is None:
            time.sleep(0.1)
            continue
        taken += 1
        sys.stdout.write(f"BATCH {json.dumps(batch)}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

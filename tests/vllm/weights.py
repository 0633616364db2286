"""Other weights than the served ones, a server that goes back to its own, and what it has generated."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from atroposlib.journal import Journal
from atroposlib.trainer.weight_sync import StudentServer, WeightSync

REFRESH_TIMEOUT_S = 120.0
WAIT_S = 60.0


def write_changed_weights(model_dir: Path, directory: Path) -> Path:
    """A checkpoint as the trainer writes it, in which one layer's MLP says nothing."""
    import torch
    from transformers import AutoModelForCausalLM

    from atroposlib.trainer.checkpoint import CheckpointFacts, save_checkpoint

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[12].mlp.down_proj.weight.zero_()
    save_checkpoint(model, model_dir, directory, torch.bfloat16, CheckpointFacts("test", 1, None))
    return directory


@contextmanager
def weight_sync(url: str, original: Path, journal: Path) -> Iterator[WeightSync]:
    """The trainer's refresh of a server, which serves its original weights again after the block."""
    sync = WeightSync(StudentServer(url, timeout_s=REFRESH_TIMEOUT_S), Journal(journal))
    try:
        yield sync
    finally:
        sync.close()
        server = StudentServer(url, timeout_s=REFRESH_TIMEOUT_S)
        server.refresh(original, "default")
        server.close()


def generated_tokens(url: str) -> float:
    """Tokens that a vLLM has generated since its start, by its own metrics."""
    text = requests.get(f"{url}/metrics", timeout=30).text
    return sum(map(float, re.findall(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", text, re.MULTILINE)))


def wait_for_tokens(url: str, count: float) -> None:
    """Wait until a vLLM has generated so many tokens since its start."""
    deadline = time.monotonic() + WAIT_S
    while generated_tokens(url) < count:
        assert time.monotonic() < deadline, "the server generates nothing"
        time.sleep(0.05)

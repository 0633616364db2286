"""Unmodified clients of the real Atropos 0.4.0 drive our server, and our clients drive a real 0.4.0."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from atroposlib.trainer.client import TrainerClient
from atroposlib.types import Group
from tests.peer.conftest import old_api, our_api
from tests.support.tiny import write_tiny_model

pytestmark = pytest.mark.peer

FOLDER = Path(__file__).parent
BATCH = 4
BATCHES = 3
TRAINER_S = 120


def old_env_module() -> ModuleType:
    """The old environment's file, imported beside our package."""
    spec = importlib.util.spec_from_file_location("old_env", FOLDER / "old_env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OLD_ENV = old_env_module()
NULL_KEYS = ("advantages", "ref_logprobs", "messages", "generation_params", "overrides", "images")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer that both versions load."""
    return write_tiny_model(tmp_path_factory.mktemp("tokenizer"), seed=0)


@contextmanager
def environment(python: Path, url: str, tokenizer: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The old environment under one of the two versions, until it ends or the block does."""
    variables = {
        "OLD_ENV_TOKENIZER": str(tokenizer),
        "OLD_ENV_API": url,
        "OLD_ENV_STEPS": str(BATCHES),
    }
    # The folder must not hold our package, or the other version's Python would find it first.
    with (folder / "environment.log").open("w") as log:
        process = subprocess.Popen(
            [str(python), str(FOLDER / "old_env.py"), "serve"],
            env=os.environ | variables,
            cwd=folder,
            stdout=log,
            stderr=log,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=30)


def expected(number: int, env_id: int) -> dict[str, Any]:
    """What Atropos's trainers see of item ``number``."""
    return dict.fromkeys(NULL_KEYS) | dict(OLD_ENV.group_of(number)) | {"env_id": env_id}


def poll_with_the_example_trainer(python: Path, url: str) -> list[list[dict[str, Any]]]:
    """The batches that the client of Atropos's example trainer got."""
    command = [str(python), str(FOLDER / "old_trainer.py"), url, str(BATCH), str(BATCHES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TRAINER_S, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("BATCH ")]


def numbers(groups: list[dict[str, Any]]) -> list[int]:
    return [group["group_overrides"]["number"] for group in groups]


def test_the_real_0_4_0_environment_and_trainer_client_run_on_our_server(
    peer_python: Path, tokenizer: Path, tmp_path: Path
) -> None:
    with our_api(tmp_path) as url, environment(peer_python, url, tokenizer, tmp_path) as process:
        batches = poll_with_the_example_trainer(peer_python, url)
        log = (tmp_path / "environment.log").read_text
        assert process.poll() is None, log()
    assert [sum(len(group["tokens"]) for group in batch) for batch in batches] == [BATCH] * BATCHES, log()
    taken = [group for batch in batches for group in batch]
    # One environment sends its items in order, so oldest first means rising, each once.
    assert numbers(taken) == list(range(1, len(taken) + 1))
    for group in taken:
        assert group == expected(group["group_overrides"]["number"], group["env_id"])


@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "0.4.0"])
def test_our_trainer_client_gets_what_an_old_environment_sent(
    peer_python: Path, tokenizer: Path, tmp_path: Path, theirs: bool
) -> None:
    server = old_api(peer_python, tmp_path) if theirs else our_api(tmp_path)
    # Our environment meets the old server, the old environment ours.
    python = Path(sys.executable) if theirs else peer_python
    with server as url, environment(python, url, tokenizer, tmp_path):
        client = TrainerClient(url)
        client.register(registration(), trainer_id="test")
        groups = take(client)
        client.close()
    assert len(groups) == BATCH * BATCHES // OLD_ENV.GROUP_SIZE, (tmp_path / "environment.log").read_text()
    sent = [group.rest["group_overrides"]["number"] for group in groups]
    assert len(set(sent)) == len(sent)
    for number, group in zip(sent, groups, strict=True):
        same_as_sent(group, OLD_ENV.group_of(number))


def registration() -> dict[str, Any]:
    return {
        "wandb_group": "",
        "wandb_project": "",
        "batch_size": BATCH,
        "max_token_len": 512,
        "checkpoint_dir": "checkpoints",
        "save_checkpoint_interval": 1,
        "starting_step": 0,
        "num_steps": BATCHES,
    }


def take(client: TrainerClient) -> list[Group]:
    """All groups of the first batches, each acked and committed."""
    groups: list[Group] = []
    for _ in range(BATCHES):
        batch = None
        while batch is None:
            batch = client.lease(wait_s=1.0)
        groups += batch.groups
        client.ack(batch)
        client.commit(batch.batch_id)
    return groups


def same_as_sent(group: Group, sent: dict[str, Any]) -> None:
    """Every array says what the environment sent; all of its numbers are exact in float16."""
    assert [row.tolist() for row in group.tokens] == sent["tokens"]
    assert [row.tolist() for row in group.masks] == sent["masks"]
    assert list(group.scores) == sent["scores"]
    assert group.inference_logprobs is not None
    assert [row.tolist() for row in group.inference_logprobs] == sent["inference_logprobs"]
    assert group.targets is not None
    ids = np.array(sent["distill_token_ids"]).reshape(-1, 2)
    assert group.targets.ids.tolist() == ids.tolist()
    logprobs = np.array(sent["distill_logprobs"]).reshape(-1, 2)
    np.testing.assert_array_equal(np.asarray(group.targets.logprobs, np.float64), logprobs)

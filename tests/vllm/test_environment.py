"""An environment with a real vLLM as student and teacher, from options alone and from YAML."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import yaml

from atroposlib.demo.processes import free_ports, log_tail
from atroposlib.trainer.client import LeasedBatch, TrainerClient
from atroposlib.wire.arrays import to_lists
from tests.support.running_vllm import NAME
from tests.vllm.raw import columns, prompt_logprobs
from tests.vllm.same_answer import TOLERANCE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "environments" / "arithmetic_distill.py"
TOP_K = 8
GROUP_SIZE = 2
GROUPS = 2
WAIT_S = 120.0

Group = dict[str, Any]


def until(condition: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> Any:
    """What a condition gives once it gives something, while the process lives."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        alive = process.poll() is None and time.monotonic() < deadline
        assert alive, "\n".join(log_tail(log, 30))
        time.sleep(0.1)
    return found


def start(stack: ExitStack, log: Path, *command: str) -> subprocess.Popen[bytes]:
    """A process in a group of its own, which ends with the stack."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command], stdout=output, stderr=output, cwd=ROOT, start_new_session=True
        )
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def start_api(stack: ExitStack, log: Path) -> str:
    """URL of a trajectory API that answers."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    process = start(stack, log, "-m", "atroposlib.cli.main", "api", "--port", str(port), "--store", "memory")

    def answers() -> bool:
        try:
            return requests.get(f"{url}/healthz", timeout=5).ok
        except requests.ConnectionError:
            return False

    until(answers, process, log)
    return url


def settings(vllm: str, api: str, model_dir: Path) -> dict[str, dict[str, Any]]:
    """Sections and their options, for YAML as they are and for the command line as ``--section.option``."""
    server = {"base_url": f"{vllm}/v1", "model_name": NAME, "server_type": "vllm"}
    env = {
        "tokenizer_name": str(model_dir),
        "rollout_server_url": api,
        "group_size": GROUP_SIZE,
        "max_completion_tokens": 12,
        "max_batches_offpolicy": 1,
        "max_num_workers": GROUPS,
        "teacher_top_k": TOP_K,
        # As exact as the teacher's answers are compared.
        "logprob_dtype": "float32",
        "total_steps": -1,
        "use_wandb": False,
    }
    return {"env": env, "openai": server, "teacher": {**server, "tokenizer_name": str(model_dir)}}


def from_options(sections: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """The command line that gives every option by itself."""
    del folder
    given = [
        (f"--{section}.{name}", value)
        for section, options in sections.items()
        for name, value in options.items()
    ]
    return [word for option, value in given for word in (option, str(value))]


def from_yaml(sections: dict[str, dict[str, Any]], folder: Path) -> list[str]:
    """The command line that names a YAML file with every option."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(sections), encoding="utf-8")
    return ["--config", str(file)]


@pytest.fixture(scope="module", params=[from_options, from_yaml])
def groups(
    request: pytest.FixtureRequest, vllm: str, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Group]]:
    """The groups of one batch, as a trainer pulls them."""
    folder = tmp_path_factory.mktemp("environment")
    log = folder / "environment.log"
    with ExitStack() as stack:
        api = start_api(stack, folder / "api.log")
        client = TrainerClient(api)
        stack.callback(client.close)
        client.register(registration(), "trainer")
        options = request.param(settings(vllm, api, model_dir), folder)
        environment = start(stack, log, str(SCRIPT), "serve", *options)
        batch: LeasedBatch = until(client.lease, environment, log)
        client.ack(batch)
        assert environment.wait(WAIT_S) == 0, "\n".join(log_tail(log, 30))
        yield [dict(to_lists(group)) for group in batch.groups]


def registration() -> dict[str, Any]:
    """A trainer of one step."""
    return {
        "wandb_group": "",
        "wandb_project": "",
        "batch_size": GROUPS * GROUP_SIZE,
        "max_token_len": 512,
        "checkpoint_dir": "",
        "save_checkpoint_interval": -1,
        "starting_step": 0,
        "num_steps": 1,
    }


def sequences(groups: list[Group]) -> Iterator[tuple[Group, int, int]]:
    """Each sequence: its group, its index, and its first sampled position."""
    for group in groups:
        for index, mask in enumerate(group["masks"]):
            yield group, index, next(position for position, value in enumerate(mask) if value != -100)


def test_batch_is_whole(groups: list[Group]) -> None:
    assert len(groups) == GROUPS
    assert [len(group["tokens"]) for group in groups] == [GROUP_SIZE] * GROUPS
    assert {group["policy_version"] for group in groups} == {0}


def test_masks_train_the_sampled_tokens_alone(groups: list[Group]) -> None:
    for group, index, first in sequences(groups):
        ids, mask = group["tokens"][index], group["masks"][index]
        assert mask == [-100] * first + ids[first:]
        assert 0 < len(ids) - first <= 12


def test_inference_logprobs_are_the_students_of_the_sampled_tokens(groups: list[Group], vllm: str) -> None:
    for group, index, first in sequences(groups):
        ids, told = group["tokens"][index], group["inference_logprobs"][index]
        assert told[:first] == [1.0] * first
        rows = prompt_logprobs(vllm, ids, 0)
        scored = [row[str(token)]["logprob"] for row, token in zip(rows, ids[1:], strict=True)]
        assert told[first:] == pytest.approx(scored[first - 1 :], abs=TOLERANCE)


def test_targets_are_what_the_teacher_says_of_the_trained_ids(groups: list[Group], vllm: str) -> None:
    for group, index, first in sequences(groups):
        ids = group["tokens"][index]
        targets = [
            widened(*target)
            for target in zip(
                group["distill_token_ids"][index], group["distill_logprobs"][index], strict=True
            )
        ]
        assert targets[:first] == [widened([], [])] * first
        rows = prompt_logprobs(vllm, ids, TOP_K)[first - 1 :]
        for token, row, target in zip(ids[first:], rows, targets[first:], strict=True):
            assert_same_target(target, columns(row, token, TOP_K))


def widened(token_ids: list[int], logprobs: list[float]) -> tuple[list[int], list[float]]:
    """A row with the absent columns that a frame leaves out where no row of its group has them."""
    missing = TOP_K + 1 - len(token_ids)
    return token_ids + [-1] * missing, logprobs + [-9999.0] * missing


def assert_same_target(target: tuple[list[int], list[float]], scored: list[tuple[int, float]]) -> None:
    """The columns agree in logprob, and in id unless the tokens tie."""
    token_ids, logprobs = target
    expected = np.array([max(logprob, -9999.0) for _, logprob in scored])
    assert logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert token_ids[0] == scored[0][0]
    for column, (token, logprob) in enumerate(scored):
        ties = np.count_nonzero(np.abs(expected[1:] - logprob) <= 2 * TOLERANCE) > 1
        at_the_end = logprob - expected[1:][expected[1:] > -9999.0].min() <= 2 * TOLERANCE
        assert token_ids[column] == token or ties or at_the_end

"""One real vLLM for all of these tests, its log in the report of every test that fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from atroposlib.demo.assets import ensure_model
from atroposlib.demo.processes import log_tail
from atroposlib.demo.vllm_backend import PYTHON_VARIABLE, vllm_python
from tests.support.running_model_server import running_model_server
from tests.support.running_vllm import MAX_LOGPROBS, MAX_MODEL_LEN, NAME, running_vllm

if TYPE_CHECKING:
    import torch

LOG = pytest.StashKey[Path]()
LOG_LINES = 40

Forward = Callable[[Path, list[int]], "torch.Tensor"]


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """Directory of SmolLM2-135M-Instruct, fetched when it is not here yet."""
    return ensure_model()


@pytest.fixture(scope="session")
def vllm(
    model_dir: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """URL of the vLLM; without one these tests fail where it was named and are skipped where it was not."""
    if PYTHON_VARIABLE not in os.environ and not vllm_python().exists():
        pytest.skip("no vLLM is installed: run `make test-vllm`")
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    request.config.stash[LOG] = log
    with running_vllm(model_dir, log, "--enable-scale-out") as server:
        yield server.url


@pytest.fixture(scope="session")
def model_server(model_dir: Path) -> Iterator[str]:
    """URL of our own model server with the same model and limits."""
    with running_model_server(
        model_dir,
        served_model_name=NAME,
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_logprobs=MAX_LOGPROBS,
    ) as url:
        yield url


@pytest.fixture(scope="session")
def forward() -> Forward:
    """Logprobs float32 [T-1, V] of T ids by transformers for a model directory; row p is of token p + 1."""
    import torch
    from transformers import AutoModelForCausalLM

    models: dict[Path, torch.nn.Module] = {}

    def logprobs(directory: Path, ids: list[int]) -> torch.Tensor:
        if directory not in models:
            models[directory] = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        with torch.no_grad():
            logits: torch.Tensor = models[directory](torch.tensor([ids])).logits[0, :-1]
        return logits.log_softmax(-1)

    return logprobs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of vLLM's log beside a failure."""
    report = yield
    log = item.config.stash.get(LOG, None)
    if report.failed and log is not None and log.exists():
        report.sections.append(("end of vLLM's log", "\n".join(log_tail(log, LOG_LINES))))
    return report

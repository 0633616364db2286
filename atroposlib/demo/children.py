"""The command and the variables of every process of a demo."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from atroposlib.demo.plan import API, ENVIRONMENT, EVALUATOR, HOST, STUDENT, TEACHER, TRAINER, Plan
from atroposlib.demo.processes import ChildSpec
from atroposlib.demo.vllm_backend import Vllm, VllmServer, server_command, server_variables

RUN_MARKER = "ATROPOS_RUN"
"""Environment variable that every process of a run carries; its value is the run's directory."""

ATROPOS = (sys.executable, "-m", "atroposlib.cli.main")
EVALUATOR_NICENESS = 5
GPU_MEMORY_SHARE = 0.25
"""Of each of two vLLM servers; the trainer and the evaluator live on the same GPU."""


def children(plan: Plan) -> list[ChildSpec]:
    """Every process of the run, in the order in which they are started."""
    specs = [_api(plan), _model_server(plan, STUDENT, plan.models.student, plan.ports.student)]
    if plan.models.teacher_url is None:
        specs.append(_model_server(plan, TEACHER, plan.models.teacher, plan.ports.teacher))
    return [*specs, _evaluator(plan), _trainer(plan), _environment(plan)]


def _api(plan: Plan) -> ChildSpec:
    store = f"sqlite:///{plan.files.queue}"
    command = (*ATROPOS, "api", "--host", HOST, "--port", str(plan.ports.api), "--store", store)
    return ChildSpec(API, command, _variables(plan, threads=1), ready_url=f"{plan.api_url}/healthz")


def _model_server(plan: Plan, name: str, model: Path, port: int) -> ChildSpec:
    if plan.vllm is not None:
        return _vllm_server(plan, plan.vllm, name, model, port)
    return _embedded_server(plan, name, model, port)


def _vllm_server(plan: Plan, vllm: Vllm, name: str, model: Path, port: int) -> ChildSpec:
    settings = plan.settings
    server = VllmServer(
        model=model,
        served_as=name,
        port=port,
        # Scoring a sequence samples one token after it.
        max_model_len=settings.max_token_length + 1,
        max_logprobs=max(20, settings.teacher_top_k),
        threads=plan.threads,
        gpu_memory_share=GPU_MEMORY_SHARE,
        seed=settings.seed,
    )
    variables = {**_variables(plan, plan.threads), **server_variables(vllm, server)}
    return ChildSpec(name, server_command(vllm, server), variables, ready_url=f"{server.url}/health")


def _embedded_server(plan: Plan, name: str, model: Path, port: int) -> ChildSpec:
    settings = plan.settings
    options = {
        "--model": str(model),
        "--served-model-name": name,
        "--host": HOST,
        "--port": str(port),
        "--device": settings.device,
        "--max-logprobs": str(max(20, settings.teacher_top_k)),
        "--seed": str(settings.seed),
    }
    command = (*ATROPOS, "model-server", *(word for option in options.items() for word in option))
    url = f"http://{HOST}:{port}/health"
    return ChildSpec(name, command, _model_variables(plan), ready_url=url)


def _evaluator(plan: Plan) -> ChildSpec:
    config = str(plan.files.part_config("evaluator.json"))
    command = (sys.executable, "-m", "atroposlib.demo.evaluate", "--config", config)
    return ChildSpec(EVALUATOR, command, _model_variables(plan), ends=True, niceness=EVALUATOR_NICENESS)


def _trainer(plan: Plan) -> ChildSpec:
    command = (*ATROPOS, "train", "--config", str(plan.files.part_config("trainer.yaml")))
    return ChildSpec(TRAINER, command, _model_variables(plan), ends=True)


def _environment(plan: Plan) -> ChildSpec:
    config = str(plan.files.part_config("environment.yaml"))
    command = (sys.executable, str(plan.environment_file), "serve", "--config", config)
    return ChildSpec(ENVIRONMENT, command, _variables(plan, threads=1))


def _model_variables(plan: Plan) -> dict[str, str]:
    # These parts are given directories, so a question to a hub could only cost time.
    return {**_variables(plan, plan.threads), "HF_HUB_OFFLINE": "1"}


def _variables(plan: Plan, threads: int) -> dict[str, str]:
    local = ",".join(filter(None, (os.environ.get("NO_PROXY"), HOST, "localhost")))
    return {
        RUN_MARKER: str(plan.files.root),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        # Threads that wait must not spin: every core is wanted by another part.
        "OMP_WAIT_POLICY": "PASSIVE",
        "NO_PROXY": local,
        "no_proxy": local,
    }

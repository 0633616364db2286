"""Which servers a configuration means: one, several, the local default ports, or a Slurm job's nodes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from atroposlib.config.server import APIServerConfig, ServerBaseline
from atroposlib.errors import ConfigError
from atroposlib.teacher.address import server_root

LOCAL_PORTS = range(9004, 9008)
NODE_PORT = 9000
GPUS_PER_NODE = 8


def server_configs(
    configs: ServerBaseline | Sequence[APIServerConfig], *, slurm: bool = False, teacher: bool = False
) -> list[APIServerConfig]:
    """One config for every server meant by ``configs``.

    An APIServerConfig with a base_url is that server, alone or in a list. A bare ServerBaseline, or a bare
    APIServerConfig without base_url, means the nodes of the Slurm job this process runs in, else localhost on
    ports 9004 to 9007. With ``slurm`` the first config of a list is repeated for the job's inference nodes.
    A ``teacher`` may be an SGLang server; nothing can be sampled from one here.

    Raises:
        ConfigError: No servers, an unusable base_url or server_type, or a Slurm job without its nodes.
    """
    if isinstance(configs, ServerBaseline):
        found = _bare(configs)
    elif slurm and configs and len(nodes := _nodes()) > 1:
        found = [configs[0].model_copy(update={"base_url": url}) for url in _node_urls(nodes)]
    else:
        found = list(configs)
    if not found:
        raise ConfigError("no model server is configured", fix="give at least one server under openai")
    supported = ("openai", "vllm", "sglang") if teacher else ("openai", "vllm")
    for config in found:
        server_root(config.base_url)  # refuse it here, not at the first request
        if config.server_type not in supported:
            raise ConfigError(
                "a server_type that is not supported",
                got=config.server_type,
                expected=f"{' or '.join(supported)} (the first two both mean the routes of a stock vLLM)",
            )
    return found


def _bare(config: ServerBaseline) -> list[APIServerConfig]:
    if isinstance(config, APIServerConfig) and config.base_url:
        return [config]
    settings = config.model_dump(exclude={"base_url"})
    nodes = _nodes() if "SLURM_JOB_NODELIST" in os.environ else []
    urls = _node_urls(nodes) if len(nodes) > 1 else [f"http://localhost:{port}/v1" for port in LOCAL_PORTS]
    return [APIServerConfig(**settings, base_url=url) for url in urls]


def _nodes() -> list[str]:
    nodelist = os.environ.get("SLURM_JOB_NODELIST")
    if nodelist is None:
        raise ConfigError("slurm is set outside a Slurm job", got="no SLURM_JOB_NODELIST", fix="drop --slurm")
    command = ["scontrol", "show", "hostnames", nodelist]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603 - no shell
    except (OSError, subprocess.SubprocessError) as failure:
        raise ConfigError("scontrol cannot name the job's nodes", got=failure) from failure
    return listed.stdout.split()


def _node_urls(nodes: Sequence[str]) -> list[str]:
    """Servers of the nodes after the training ones: one for each INFER_TP of a node's GPUs."""
    try:
        training = int(os.environ["NUM_TRAINING_NODES"])
        servers = GPUS_PER_NODE // int(os.environ.get("INFER_TP", "1"))
    except (KeyError, ValueError, ZeroDivisionError) as failure:
        raise ConfigError(
            "the Slurm job does not say which nodes serve",
            expected="NUM_TRAINING_NODES and INFER_TP as integers",
        ) from failure
    return [f"http://{node}:{NODE_PORT + index}/v1" for node in nodes[training:] for index in range(servers)]

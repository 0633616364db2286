"""ServerManager by name, imported when the first one is built: its HTTP client takes 0.3 s to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atroposlib.envs.server_handling.server_manager import ServerManager as Manager


def ServerManager(configs: Any, slurm: bool = False, testing: bool = False) -> Manager:
    """A :class:`atroposlib.envs.server_handling.server_manager.ServerManager` of these servers."""
    from atroposlib.envs.server_handling.server_manager import ServerManager as Manager

    return Manager(configs, slurm=slurm, testing=testing)


def TeacherServerManager(configs: Any, slurm: bool = False, testing: bool = False) -> Manager:
    """The same over a teacher's servers: their weights never change, and they may be SGLang's."""
    from atroposlib.envs.server_handling.server_manager import ServerManager as Manager

    return Manager(configs, slurm=slurm, testing=testing, teacher=True)

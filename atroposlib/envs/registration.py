"""How an environment makes itself known to the trajectory API, and waits for what is not there yet."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from atroposlib.config.env import BaseEnvConfig
from atroposlib.envs.api_client import TrajectoryApi
from atroposlib.errors import ApiError

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
REMIND_EVERY = 20


class Waiting:
    """Pauses that grow, with one log line at the first and a reminder now and then."""

    def __init__(self) -> None:
        self._times = 0
        self._reason = ""

    async def pause(self, reason: str) -> None:
        """Log why when the reason is new or due for a reminder, then sleep."""
        if reason != self._reason or self._times % REMIND_EVERY == 0:
            logger.info("waiting: %s", reason)
        self._reason = reason
        seconds = min(FIRST_PAUSE_SECONDS * 1.5 ** min(self._times, 30), LONGEST_PAUSE_SECONDS)
        self._times += 1
        await asyncio.sleep(seconds * random.uniform(0.7, 1.0))


async def register(api: TrajectoryApi, config: BaseEnvConfig, name: str, identity: str) -> dict[str, Any]:
    """Register an environment, and find out what the API takes; waits for it and for the trainer's start.

    Args:
        api: Client of the trajectory API.
        config: The environment's settings.
        name: Its name for people.
        identity: Gets the same id and name again from an API of ours; Atropos's does not read it.

    Returns:
        The answer: ``env_id``, ``wandb_name``, ``checkpoint_dir``, ``starting_step``,
        ``checkpoint_interval``, ``num_steps``.

    Raises:
        ApiError: The API refuses the registration.
    """
    request = {
        "max_token_length": config.max_token_length,
        "desired_name": name,
        "weight": config.inference_weight,
        "group_size": config.group_size,
        "min_batch_allocation": config.min_batch_allocation,
        "identity": identity,
    }
    waiting = Waiting()
    while True:
        try:
            answer: dict[str, Any] = await api.post("/register-env", request)
            if answer.get("status") == "success":
                await api.probe()
                return answer
        except ApiError as error:
            if error.code == "api.refused":
                raise
            await waiting.pause(str(error))
            continue
        await waiting.pause(f"{api.base_url} says {answer.get('status')!r}; no trainer has asked for a batch")


async def trainer_info(api: TrajectoryApi) -> dict[str, Any]:
    """``batch_size`` and ``max_token_len`` of the trainer, -1 where unknown; waits for the API."""
    waiting = Waiting()
    while True:
        try:
            info: dict[str, Any] = await api.get("/info")
            return info
        except ApiError as error:
            if error.code == "api.refused":
                raise
            await waiting.pause(str(error))


async def wait_for_wandb_project(api: TrajectoryApi) -> tuple[str | None, str | None]:
    """Group and project of the trainer's wandb run; waits for the trainer, and says so.

    Returns:
        (group, project); the project is None when a trainer is registered without one.
    """
    waiting = Waiting()
    while True:
        try:
            told = await api.get("/wandb_info")
            if told.get("project"):
                return told.get("group"), told["project"]
            if (await api.get("/info")).get("batch_size", -1) != -1:
                return None, None
            reason = f"{api.base_url} has no trainer that names a wandb project (env.use_wandb is on)"
        except ApiError as error:
            if error.code == "api.refused":
                raise
            reason = str(error)
        await waiting.pause(reason)


async def status_after_outage(
    api: TrajectoryApi, env_id: int | None, name: str | None
) -> dict[str, Any] | None:
    """Wait until the API answers again.

    Returns:
        This environment's status, or None when the API does not know the environment any more.
    """
    waiting = Waiting()
    while True:
        try:
            status: dict[str, Any] = await api.get("/status-env", {"env_id": env_id})
            return status if await _is_known(api, env_id, name) else None
        except ApiError as error:
            if error.code != "api.unreachable":
                return None
            await waiting.pause(str(error))


async def _is_known(api: TrajectoryApi, env_id: int | None, name: str | None) -> bool:
    """Whether the id still is this environment's: a restarted API counts its environments anew."""
    try:
        status = await api.get("/v1/status")
    except ApiError as error:
        if error.code == "api.unreachable":
            raise
        # An API of Atropos has no such route; its answer to /status-env has to do.
        return True
    return any(env.get("env_id") == env_id and env.get("name") == name for env in status.get("envs", []))

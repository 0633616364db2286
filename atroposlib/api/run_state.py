"""The state of a run: what the trainer registered, which environments take part, the step."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

logger = logging.getLogger(__name__)

# Bounds far beyond any real run, which keep the sharing arithmetic finite.
Count = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Weight = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Registration(BaseModel):
    """What a trainer says of its run. ``batch_size`` counts sequences."""

    model_config = ConfigDict(frozen=True)

    wandb_group: str
    wandb_project: str
    batch_size: Count = Field(ge=1)
    max_token_len: Count
    checkpoint_dir: str
    save_checkpoint_interval: Count
    starting_step: Count
    num_steps: Count


class EnvRegistration(BaseModel):
    """What an environment says of itself. ``max_token_length`` in tokens, ``group_size`` in sequences."""

    model_config = ConfigDict(frozen=True)

    max_token_length: Count
    desired_name: str
    weight: Weight
    group_size: Count
    min_batch_allocation: Share | None = None


@dataclass(slots=True)
class EnvRecord:
    """One registered environment; times are seconds of the API's clock.

    Attributes:
        env_id: Index in the order of registration.
        name: ``<desired_name>_<number of earlier ones with that name>``.
        registration: Its own words.
        last_seen: When it last called.
        last_group: When it last posted a new group; its registration at first.
        groups_received: Distinct groups of it that were accepted.
        left: It said that it disconnects.
    """

    env_id: int
    name: str
    registration: EnvRegistration
    last_seen: float
    last_group: float
    groups_received: int = 0
    left: bool = False


@dataclass(slots=True)
class Run:
    """The state of one run; a new object is the state before any trainer came.

    Attributes:
        env_silent_s: Seconds without a call after which an environment counts as gone.
        minimum_idle_s: Seconds without a group after which an environment's minimum share is waived.
        registration: The trainer's latest words, None before it came.
        step: The registration's ``starting_step`` plus the batches delivered since.
        started: A trainer has asked for a batch, which lets environments in.
        envs: Environments by ``env_id``.
        trainer_seen: When a trainer last called, None before.
        waiting: Why the last question for a batch got none though enough is queued, else None.
        wait_told: A warning has told of such a wait.
    """

    env_silent_s: float
    minimum_idle_s: float
    registration: Registration | None = None
    step: int = 0
    started: bool = False
    envs: list[EnvRecord] = field(default_factory=list)
    trainer_seen: float | None = None
    waiting: str | None = None
    wait_told: bool = False

    def register(self, registration: Registration, now: float) -> None:
        """Take a trainer's registration.

        Values equal to the current ones add a trainer to the run and change nothing. Other values replace the
        run's, and the step becomes their ``starting_step``; environments and queued groups stay.
        """
        self.trainer_seen = now
        if registration != self.registration:
            self.registration = registration
            self.step = registration.starting_step

    def add_env(self, registration: EnvRegistration, now: float) -> EnvRecord:
        """Give an environment its id and name."""
        namesakes = sum(env.registration.desired_name == registration.desired_name for env in self.envs)
        env = EnvRecord(
            env_id=len(self.envs),
            name=f"{registration.desired_name}_{namesakes}",
            registration=registration,
            last_seen=now,
            last_group=now,
        )
        self.envs.append(env)
        return env

    def env(self, env_id: int | None) -> EnvRecord | None:
        """The environment of an id, or None; a negative id is nobody's."""
        if env_id is None or not 0 <= env_id < len(self.envs):
            return None
        return self.envs[env_id]

    def see(self, env_id: int | None, now: float, *, groups: int = 0) -> None:
        """Note that an environment called, and how many new groups it brought."""
        env = self.env(env_id)
        if env is None:
            return
        env.last_seen = now
        if groups:
            env.last_group = now
            env.groups_received += groups

    def wait_because(self, reason: str | None) -> None:
        """Keep why there is no batch, None when there is one or too little is queued; warn the first time."""
        self.waiting = reason
        if reason is not None and not self.wait_told:
            self.wait_told = True
            logger.warning("no batch: %s; group sizes and batch_size must fit each other", reason)

    def connected(self, now: float) -> list[EnvRecord]:
        """The environments that take part: registered, not left, not silent."""
        return [env for env in self.envs if not env.left and now - env.last_seen < self.env_silent_s]

    def minimums(self, now: float) -> dict[int, int]:
        """Sequences of the next batch that each delivering environment has to get.

        Environments that are gone or idle are left out, so they cannot hold up the others; shares that sum to
        more than the whole are scaled down.
        """
        if self.registration is None:
            return {}
        shares = {
            env.env_id: env.registration.min_batch_allocation or 0.0
            for env in self.connected(now)
            if now - env.last_group < self.minimum_idle_s
        }
        scale = self.registration.batch_size / max(1.0, sum(shares.values()))
        counts = {env_id: int(share * scale) for env_id, share in shares.items()}
        return {env_id: count for env_id, count in counts.items() if count > 0}

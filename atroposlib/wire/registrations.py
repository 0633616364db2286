"""What trainers and environments say of themselves when they register."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Bounds far beyond any real run, which keep the sharing arithmetic finite.
Count = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Weight = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
# A bound also makes pydantic refuse lone surrogates, which no answer and no file can carry.
Text = Annotated[str, Field(max_length=4096)]


class Registration(BaseModel):
    """What a trainer says of its run (POST /register). ``batch_size`` counts sequences.

    Attributes:
        max_policy_lag: Groups whose ``policy_version`` is more than this many steps behind are dropped.
    """

    model_config = ConfigDict(frozen=True)

    wandb_group: Text
    wandb_project: Text
    # Not a Count with another bound: of two bounds pydantic keeps the last, which is Count's.
    batch_size: int = Field(ge=1, lt=2**31)
    max_token_len: Count
    checkpoint_dir: Text
    save_checkpoint_interval: Count
    starting_step: Count
    num_steps: Count
    max_policy_lag: int | None = Field(None, ge=0, lt=2**31)


class TrainerRegistration(BaseModel):
    """POST /v1/trainers: a run's registration under a name that survives the trainer's restart.

    Attributes:
        trainer_id: Chosen by the trainer and kept over restarts, such as its output directory.
        last_committed: Batch in the checkpoint that the trainer starts from, None for fresh weights.
        run: The run's registration.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trainer_id: Name
    last_committed: Name | None = None
    run: Registration


class EnvRegistration(BaseModel):
    """What an environment says of itself. ``max_token_length`` in tokens, ``group_size`` in sequences.

    Attributes:
        identity: Chosen by the environment and kept over restarts: the same identity gets the same
            ``env_id`` and name again.
    """

    model_config = ConfigDict(frozen=True)

    max_token_length: Count
    desired_name: Text
    weight: Weight
    group_size: Count
    min_batch_allocation: Share | None = None
    identity: Name | None = None

"""Settings of the reference trainer, ``atropos train``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from atroposlib.config.losses.choice import Auto, Loss, as_losses
from atroposlib.config.losses.policy import DPO

PAIR = 2


class TrainedTeacher(BaseModel):
    """What the trainer knows of a teacher beyond what its groups say."""

    model_config = ConfigDict(extra="forbid")

    weight: float | None = Field(
        None, ge=0, description="Weight of its losses; null takes the groups' own. 0 leaves it out."
    )
    tokenizer: str | None = Field(
        None,
        description="Its tokenizer: directory or hub id; null looks for the groups' fingerprint among those "
        "that servers handed out.",
    )
    projection: Path | None = Field(
        None, description="Matrix from the student's vocabulary to its own (`atropos projection build`)."
    )
    vocab_size: int | None = Field(
        None, ge=1, description="Rows of its head; null for those of its projection."
    )
    gold_loss: bool | None = Field(
        None, description="gold_loss of cross_tokenizer_distillation for it alone; null for the loss's."
    )
    xtoken_loss: bool | None = Field(None, description="xtoken_loss, likewise.")


def _auto() -> list[Loss]:
    return [Auto(name="auto")]


class TrainerSettings(BaseModel):
    """Settings of one training run. The trainer opens no model but ``model``."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="Student to train: a directory or a hub id.")
    output_dir: str = Field(description="Directory of the checkpoints; step n is saved as step-n in it.")
    api_url: str = Field(
        "http://127.0.0.1:8000", pattern=r"^https?://", description="URL of the trajectory API."
    )
    data: Path | None = Field(
        None, description="Output directory of `atropos score` to train on, in place of the API's groups."
    )
    epochs: int | None = Field(
        None,
        ge=1,
        description="Passes over data, from which total_steps follows; null for one, or for as many as "
        "a given total_steps takes.",
    )
    shuffle: bool = Field(
        True, description="Take the groups of data in another order in each pass, which seed decides."
    )
    total_steps: int = Field(100, ge=1, description="Optimizer steps to take.")
    batch_size: int = Field(8, ge=1, description="Sequences of one optimizer step.")
    micro_batch_size: int = Field(
        8, ge=1, description="Most sequences in one forward pass; changes memory and speed, not the result."
    )
    max_token_len: int = Field(
        2048, ge=2, description="Longest sequence, in tokens; longer ones are dropped and counted."
    )
    loss: list[Loss] = Field(
        default_factory=_auto,
        description="A loss by name or as a mapping with its settings, or a list of them, which are added; "
        "`atropos losses` tells of each.",
    )
    teachers: dict[str, TrainedTeacher] = Field(
        {}, description="Teachers by the name that they have in the groups; wins over what groups say."
    )
    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate of AdamW.")
    warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises linearly.")
    schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="Learning rate after warm-up: constant, or falling linearly to a tenth at the end.",
    )
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of AdamW, on matrices only.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="Decay rates of AdamW's two moments.")
    max_grad_norm: float = Field(1.0, gt=0, description="Norm to which a larger gradient is scaled down.")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:n.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Arithmetic of the forward pass; auto is bfloat16 on CUDA and float32 on a CPU. "
        "Weights, gradients and AdamW's moments are float32 either way.",
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; null leaves the choice to torch.")
    seed: int = Field(0, description="Seed of everything random in the trainer.")
    save_every: int | None = Field(
        None, ge=1, description="Steps between two checkpoints; null for those of the refreshes and the last."
    )
    save_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Type of the saved weights; auto is that of the forward pass."
    )
    keep_checkpoints: int = Field(
        2, ge=2, description="Newest checkpoints that are kept; two, since a server may be reading the last."
    )
    student_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="Server of the student, given new weights as they are trained; null for none.",
    )
    refresh_every: int = Field(1, ge=1, description="Steps between two refreshes of the student's server.")
    refresh_timeout_s: float = Field(300.0, gt=0, description="Seconds that each call of a refresh may take.")
    api_timeout_s: float = Field(
        120.0, gt=0, description="Seconds without any answer of the API after which the run ends."
    )
    poll_interval_s: float = Field(
        0.2, gt=0, description="Seconds to pause when the API had no batch to give."
    )
    trainer_id: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Name that the API knows this trainer by over restarts; null takes output_dir. With the "
        "trainer_id in the atropos.json of the checkpoint given as model, that run is gone on with: its step "
        "counts on, and batches trained after the checkpoint are delivered again.",
    )
    lease_s: float = Field(
        300.0,
        ge=3,
        le=86400,
        description="Seconds without a sign of life of this trainer after which the API delivers its batch "
        "again; a living trainer renews its leases.",
    )
    max_policy_lag: int | None = Field(
        None,
        ge=0,
        description="Groups sampled by weights of more than this many steps ago are dropped by the API; "
        "null for no limit.",
    )
    wandb_project: str = Field(
        "", description="Weights & Biases project that environments log to; told to them by the API."
    )
    wandb_group: str = Field("", description="Weights & Biases group of the run, likewise.")
    journal_path: str | None = Field(None, description="JSON-lines file for this trainer's events.")

    @field_validator("loss", mode="before")
    @classmethod
    def _one_loss_or_several(cls, value: Any) -> Any:
        return as_losses(value)

    @model_validator(mode="after")
    def _losses_can_be_trained(self) -> Self:
        if not any(loss.weight for loss in self.loss):
            raise ValueError("no loss has a weight above 0")
        if self.micro_batch_size < PAIR and any(isinstance(loss, DPO) for loss in self.loss):
            raise ValueError("dpo compares two sequences in one pass: set micro_batch_size to 2 or more")
        return self

    @model_validator(mode="after")
    def _decay_rates_below_one(self) -> Self:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError("betas must lie in [0, 1)")
        return self

    @model_validator(mode="after")
    def _one_source_and_one_end(self) -> Self:
        if self.data is not None and "api_url" in self.model_fields_set:
            raise ValueError("groups come from data or from api_url, so give one of them")
        if self.data is None and self.epochs is not None:
            raise ValueError("epochs are passes over data, which is not given")
        if self.epochs is not None and "total_steps" in self.model_fields_set:
            raise ValueError("epochs and total_steps both say where the run ends, so give one of them")
        return self

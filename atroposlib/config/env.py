"""Settings of an environment: Atropos's fields with Atropos's defaults, and the teacher's."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from atroposlib.config.teacher import MOST_TOP_K, TeacherTuning

LogprobDtype = Literal["float16", "float32"]


class EvalHandlingEnum(StrEnum):
    """What happens to training workers while an evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


class BaseEnvConfig(BaseModel):
    """Settings every environment has. Subclasses add their own fields."""

    model_config = ConfigDict(extra="forbid")

    group_size: int = Field(4, description="Rollouts in a group.")
    max_num_workers: int = Field(
        -1, description="Most items worked on at once; -1 derives it from max_num_workers_per_node."
    )
    max_eval_workers: int = Field(16, description="Most evaluation tasks worked on at once.")
    max_num_workers_per_node: int = Field(
        8, description="Most items worked on at once for each student server."
    )
    steps_per_eval: int = Field(100, description="Trainer steps between two evaluations; -1 for none.")
    max_token_length: int = Field(2048, description="Longest sequence that is sampled and sent, in tokens.")
    eval_handling: EvalHandlingEnum = Field(
        EvalHandlingEnum.STOP_TRAIN, description="What happens to training workers during an evaluation."
    )
    eval_limit_ratio: float = Field(0.5, description="Share of workers left to training under LIMIT_TRAIN.")
    inference_weight: float = Field(
        1.0, description="Weight of this environment among those of a run; -1 takes no part in the sharing."
    )
    batch_size: int = Field(-1, description="Sequences of a batch; -1 takes the trainer's.")
    max_batches_offpolicy: int = Field(
        3, description="Most batches worked on and queued ahead of the trainer."
    )
    tokenizer_name: str = Field(
        "NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        description="Tokenizer of the student: hub id or directory.",
    )
    use_wandb: bool = Field(True, description="Log to Weights & Biases under the trainer's project.")
    rollout_server_url: str = Field("http://localhost:8000", description="URL of the trajectory API.")
    total_steps: int = Field(
        1000, description="Trainer steps after which the environment ends; -1 takes the trainer's number."
    )
    wandb_name: str | None = Field(None, description="Name of the run; the environment's name when null.")
    num_rollouts_to_keep: int = Field(32, description="Groups kept for the rollout table.")
    num_rollouts_per_group_for_logging: int = Field(
        1, description="Rollouts of each kept group; -1 for all of them."
    )
    ensure_scores_are_not_same: bool = Field(
        True, description="Drop groups whose scores are all equal (they carry no reward signal)."
    )
    data_path_to_save_groups: str | None = Field(
        None, description="JSON-lines file to append sent groups to."
    )
    data_dir_to_save_evals: str | None = Field(None, description="Directory for evaluation results.")
    min_items_sent_before_logging: int = Field(2, description="Groups sent between two log lines.")
    include_messages: bool = Field(False, description="Send the chat messages beside the tokens.")
    min_batch_allocation: float | None = Field(
        None, ge=0.0, le=1.0, description="Least share of every batch that this environment is given."
    )
    worker_timeout: float = Field(600, description="Seconds after which a worker is given up; -1 for never.")
    thinking_mode: bool = Field(False, description="Ask the student to reason before it answers.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="Reasoning effort sent to servers that know it."
    )
    max_reasoning_tokens: int | None = Field(
        None, ge=1024, le=32000, description="Most reasoning tokens, for servers that know the limit."
    )
    custom_thinking_prompt: str | None = Field(None, description="System prompt of the thinking mode.")
    journal_path: str | None = Field(
        None, description="JSON-lines file for this environment's events and counters."
    )
    identity: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Name that stays over restarts: the API gives the same identity the same id again. Null "
        "makes one for this process.",
    )
    logprob_dtype: LogprobDtype = Field(
        "float16",
        description="Type in which the teachers' logprobs travel; float16 is off by at most 0.008 nats at "
        "-21 nats, and halves the bytes.",
    )


class TeacherDistillationConfig(TeacherTuning, BaseEnvConfig):
    """Settings of an environment that asks teachers for logprobs."""

    teacher_enabled: bool = Field(
        False,
        description="Fetch the teachers' logprobs of every group. Naming a teacher, by option or in YAML, "
        "turns it on unless it is set there explicitly.",
    )
    teacher_top_k: int = Field(
        0,
        ge=-1,
        le=MOST_TOP_K,
        description="Top-k tokens asked of the teacher at each position beside the selected one: "
        "0 for the selected token alone, -1 to fetch nothing.",
    )
    teacher_positions: Literal["completion", "all"] = Field(
        "completion",
        description="Positions that are kept: those that are trained (masks), or all but the first.",
    )
    on_teacher_failure: Literal["mask", "requeue", "drop", "send_without"] = Field(
        "mask",
        description="What becomes of a sequence the teacher could not score: mask its positions and keep the "
        "rest of the group; requeue the group, to be asked again later; drop the group; or send it without "
        "teacher targets as Atropos does. Under mask a group in which nothing was scored is requeued.",
    )
    teacher_requeues: int = Field(
        3, ge=0, description="Times a group is requeued for want of its teacher; then it is dropped."
    )
    teacher_patience: float = Field(
        120.0, gt=0, description="Seconds after which a sequence that no teacher server scored is given up."
    )
    alignment: Literal["auto", "same_tokenizer"] = Field(
        "auto",
        description="Teachers with another tokenizer than the student: auto pairs their tokens with the "
        "student's byte for byte; same_tokenizer refuses them.",
    )
    distill_projection: Literal["off", "exact"] = Field(
        "off",
        description="What distill_token_ids hold when no teacher has the student's tokenizer: off for none, "
        "exact for the rows of one teacher token that stands for one student token, in the student's ids.",
    )
    student_top_k: int = Field(
        0,
        ge=0,
        le=MOST_TOP_K,
        description="Ids of the student's own top-k that the teacher scores too, as further columns; needs a "
        "teacher that scores ids it is given.",
    )

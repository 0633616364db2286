"""Settings of the supervised demo: one teacher, one student, every part on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class DemoSettings(BaseModel):
    """Settings of `atropos demo`. The defaults suit two CPU cores and no network but PyPI."""

    model_config = ConfigDict(extra="forbid")

    teacher: str = Field(
        "smollm2-135m-instruct",
        description="Teacher: smollm2-135m-instruct or gemma (Gemma 3 270M, a base model with another "
        "tokenizer; both from packages), a hub id, a directory, or the URL of a server that already runs.",
    )
    student: str | None = Field(
        None,
        description="Student: hub id, directory or smollm2-135m-instruct, which is also gemma's when null; "
        "null prunes layers from any other teacher, so that the demo shows how distillation recovers them.",
    )
    keep_layers: list[int] | None = Field(
        None, description="Layers of the teacher that the pruned student keeps; null drops every third."
    )
    environment: Path | None = Field(
        None, description="Environment file to serve; null takes environments/arithmetic_distill.py."
    )
    out: Path | None = Field(None, description="Directory of the results; null takes runs/<time>.")
    backend: Literal["embedded", "vllm"] = Field(
        "embedded",
        description="Model servers: embedded runs `atropos model-server`, vllm the vLLM that "
        "$ATROPOS_VLLM_PYTHON names (default .venv-vllm/bin/python).",
    )
    steps: int = Field(16, ge=1, description="Optimizer steps.")
    batch_size: int = Field(8, ge=1, description="Sequences of an optimizer step.")
    group_size: int = Field(4, ge=1, description="Rollouts sampled from one prompt; divides batch_size.")
    batches_ahead: int = Field(
        1,
        ge=1,
        description="Batches that may wait or be in work beside the one trained and the next one, which the "
        "trainer has fetched already.",
    )
    max_completion_tokens: int = Field(48, ge=1, description="Longest rollout and held-out text, in tokens.")
    max_token_length: int = Field(512, ge=2, description="Longest prompt and completion together, in tokens.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate of AdamW; null takes 8e-4 for a pruned student, which has much to "
        "mend, and 2e-4 for a whole one.",
    )
    warmup_steps: int = Field(1, ge=0, description="Steps of linear warm-up of the learning rate.")
    teacher_top_k: int = Field(20, ge=0, description="Top-k tokens asked of the teacher at each position.")
    eval_prompts: int = Field(12, ge=1, description="Held-out prompts of the evaluator.")
    eval_every: int = Field(
        4, ge=1, description="Steps between two evaluations; the first and the last step always count."
    )
    sample_prompts: int = Field(4, ge=0, description="Held-out prompts whose completions the report shows.")
    seed: int = Field(0, ge=0, description="Seed of prompts, sampling and evaluation.")
    device: str = Field("auto", description="Device of every model: auto, cpu, cuda or cuda:<n>.")
    threads: int | None = Field(
        None, ge=1, description="Compute threads of each model process; null shares the cores out."
    )
    ready_timeout_s: float = Field(300.0, gt=0, description="Seconds within which every part must be ready.")
    grace_s: float = Field(
        10.0, gt=0, description="Seconds between asking a part to end and ending it by force."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(f"group_size {self.group_size} does not divide batch_size {self.batch_size}")
        if self.student is not None and self.keep_layers is not None:
            raise ValueError("keep_layers prunes the teacher, so it cannot be given together with student")
        return self


class EvaluatorSettings(BaseModel):
    """What the evaluator process of a demo is told; written by the demo, not by people."""

    model_config = ConfigDict(extra="forbid")

    teacher: Path = Field(description="Model directory of the teacher.")
    student: Path = Field(description="Model directory of the student before training.")
    same_tokenizer: bool = Field(description="Whether every id says the same to both models.")
    prompts: list[list[dict[str, str]]] = Field(description="Held-out prompts as chat messages.")
    sample_prompts: int = Field(description="How many of the prompts are completed for people to read.")
    max_completion_tokens: int = Field(description="Longest continuation, in tokens.")
    steps: int = Field(description="The evaluator ends after the checkpoint of this step.")
    every: int = Field(description="Steps between two evaluations.")
    checkpoints: Path = Field(description="The trainer's journal, which tells of checkpoints.")
    journal_path: Path = Field(description="Where the evaluator writes its events.")
    seed: int = Field(description="Seed of the teacher's continuations.")
    device: str = Field(description="auto, cpu, cuda or cuda:<n>.")
    threads: int = Field(description="Compute threads.")

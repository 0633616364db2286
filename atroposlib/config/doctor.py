"""What `atropos doctor` takes from the `env` section of an environment's settings."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class DoctorEnv(BaseModel):
    """The settings that say what the servers must be able to do.

    A file of an environment holds many more under `env`; they are the environment's own and let through.
    """

    model_config = ConfigDict(extra="ignore")

    tokenizer_name: str | None = Field(
        None,
        min_length=1,
        description="Tokenizer of the student: hub id or directory; null leaves out what needs it.",
    )
    alignment: Literal["auto", "same_tokenizer"] = Field(
        "auto", description="Whether a teacher may have another tokenizer than the student."
    )
    teacher_top_k: int = Field(
        0, ge=-1, description="Top-k tokens that will be asked of a teacher which names no top_k of its own."
    )
    max_token_length: int | None = Field(
        None, ge=1, description="Longest sequence that will be scored, in tokens; null for no such check."
    )

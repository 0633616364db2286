"""Settings of offline scoring, ``atropos score``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ConfigDict, Field, model_validator

from atroposlib.config.env import LogprobDtype
from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import MOST_TOP_K, TeacherConfig, TeacherTuning


class ScoreSettings(TeacherTuning):
    """Score the rows of a file with teachers and write them as shards that `atropos train --data` reads.

    Started again, it goes on where it was. Started several times at once, the workers share the rows.
    """

    model_config = ConfigDict(extra="forbid")

    input: Path = Field(
        description="JSON lines, or Parquet by its .parquet. A row has tokens (and masks), or prompt and "
        "completion, or messages."
    )
    output: Path = Field(description="Directory of the job and its shards.")
    tokenizer_name: str | None = Field(
        None,
        min_length=1,
        description="Tokenizer of the student: hub id or directory. Rows of text need it; where it is given, "
        "every teacher's must be the same.",
    )
    teacher: APIServerConfig | None = Field(None, description="The teacher, when there is one.")
    teachers: dict[str, TeacherConfig] = Field({}, description="Teachers by name.")
    teacher_top_k: int = Field(
        16,
        ge=0,
        le=MOST_TOP_K,
        description="Top-k tokens asked of a teacher which names no top_k of its own.",
    )
    teacher_positions: Literal["completion", "all"] = Field(
        "completion",
        description="Positions that are kept: those that are trained (masks), or all but the first.",
    )
    max_token_length: int | None = Field(
        None,
        ge=2,
        description="Longest sequence that is scored, in tokens; longer ones are masked and counted. Null "
        "for what the teacher takes.",
    )
    logprob_dtype: LogprobDtype = Field("float16", description="Type in which logprobs are stored.")
    rows_per_shard: int = Field(
        256,
        ge=1,
        le=65_536,
        description="Rows of a shard, which is written by one worker and has its name once it is whole.",
    )
    teacher_patience: float = Field(
        120.0, gt=0, description="Seconds after which a teacher that no server answers for ends the job."
    )
    stop_after_failures: int | None = Field(
        32,
        ge=1,
        description="Rows in a row that a teacher refuses or fails on after which the job ends with its "
        "error; null masks them all.",
    )

    @model_validator(mode="after")
    def _has_a_teacher(self) -> Self:
        if self.teacher is None and not self.teachers:
            raise ValueError("no teacher is named: give teacher.base_url and teacher.model_name, or teachers")
        return self

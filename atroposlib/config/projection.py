"""Settings of ``atropos projection build`` and ``atropos projection inspect``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_COLUMNS = 32
"""Columns that a row of a projection can have."""


class ProjectionBuildSettings(BaseModel):
    """Make the projection of a student's vocabulary on a teacher's, for losses that need a matrix."""

    model_config = ConfigDict(extra="forbid")

    student: str = Field(min_length=1, description="Tokenizer of the student: directory or hub id.")
    teacher: str = Field(min_length=1, description="Tokenizer of the teacher: directory or hub id.")
    output: Path = Field(Path("projection.safetensors"), description="File to write.")
    top_k: int = Field(4, ge=1, le=MOST_COLUMNS, description="Teacher tokens that a student token maps to.")
    reverse_pass: bool = Field(
        True, description="Count how the student writes the teacher's tokens as well as the reverse."
    )
    special_tokens: bool = Field(True, description="Map special tokens, by role and by name.")
    exact_map: bool = Field(
        True, description="Map a token whose bytes the teacher has as one token to that one alone."
    )
    scale_trick: bool = Field(
        False, description="Give the last of 32 columns weight .2 and keep it, as NeMo RL can."
    )

    @model_validator(mode="after")
    def _room_for_the_scale(self) -> Self:
        if self.scale_trick and self.top_k < 2:
            raise ValueError("scale_trick keeps a column of its own: give top_k 2 or more")
        return self


with warnings.catch_warnings():
    # The option is --json; pydantic's deprecated method of that name is not missed.
    warnings.filterwarnings("ignore", message='Field name "json"')

    class ProjectionInspectSettings(BaseModel):
        """Print what is in a projection file: shape, origin, row sums, exact and empty rows, examples."""

        model_config = ConfigDict(extra="forbid")

        file: Path = Field(description="Projection: safetensors, or a .pt file of NeMo RL.")
        student: str | None = Field(
            None, description="Tokenizer of the student, to show examples as text and to compare."
        )
        teacher: str | None = Field(None, description="Tokenizer of the teacher, likewise.")
        examples: int = Field(10, ge=0, description="Rows of several columns that are shown.")
        # BaseModel has an old method of this name, which nobody calls.
        json: bool = Field(False, description="Print the figures as JSON.")  # type: ignore[assignment]

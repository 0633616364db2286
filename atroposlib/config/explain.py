"""Settings of ``atropos explain``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

with warnings.catch_warnings():
    # The option is --json; pydantic's deprecated method of that name is not missed.
    warnings.filterwarnings("ignore", message='Field name "json"')

    class ExplainSettings(BaseModel):
        """Show a text as two tokenizers cut it, chunk by chunk, and which of it cannot be aligned."""

        model_config = ConfigDict(extra="forbid")

        student: str = Field(min_length=1, description="Tokenizer of the student: directory or hub id.")
        teacher: str = Field(min_length=1, description="Tokenizer of the teacher: directory or hub id.")
        text: Path | None = Field(
            None, description="Text to show; what is piped in when omitted, or else a built-in sample."
        )
        messages: Path | None = Field(
            None,
            description="JSON file with a conversation, as a list or under messages: shown as the student's "
            "chat template renders it beside what the teacher sees of it.",
        )
        # BaseModel has an old method of this name, which nobody calls.
        json: bool = Field(False, description="Print the chunks and figures as JSON.")  # type: ignore[assignment]

        @model_validator(mode="after")
        def _one_source(self) -> Self:
            if self.text is not None and self.messages is not None:
                raise ValueError("give --text or --messages, not both")
            return self

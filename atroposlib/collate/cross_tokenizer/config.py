"""What a collator supervises: raw text, or the last answer of a conversation with or without reasoning."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from atroposlib.errors import ConfigError

Region = Literal["reasoning", "close", "answer", "eot"]


class CrossTokenizerCollatorConfig(BaseModel):
    """Settings that all teachers of a collator share.

    Raises:
        ValueError: Settings that do not fit together, or one that does not exist.
    """

    model_config = ConfigDict(extra="forbid")

    mode: Literal["text", "chat"] = Field(
        "text",
        description="text takes the content of a row's first message as it is; chat renders the conversation "
        "through each model's chat template and supervises the last answer.",
    )
    include_thinking_in_loss: bool = Field(
        False,
        description="In chat: supervise the reasoning and its closing marker too, never the opening one.",
    )
    native_thinking_alignment: bool = Field(
        False,
        description="In chat: take reasoning_content apart and align reasoning, closing marker, answer with "
        "tool calls, and end of turn each on its own. Needs ChatML with <think> on every side.",
    )
    kd_alignment_regions: list[Region] | None = Field(
        None,
        description="With native_thinking_alignment: the only regions that are aligned; null for all. "
        "What is supervised does not change.",
    )
    num_packed_rows: PositiveInt = Field(1, description="Rows that share a sequence; only 1 is there.")

    @model_validator(mode="after")
    def _fit_together(self) -> CrossTokenizerCollatorConfig:
        if self.native_thinking_alignment and not (self.mode == "chat" and self.include_thinking_in_loss):
            raise ConfigError(
                "the reasoning can only be aligned where it is supervised",
                where="native_thinking_alignment",
                got=f"mode={self.mode}, include_thinking_in_loss={self.include_thinking_in_loss}",
                expected="mode=chat, include_thinking_in_loss=True",
            )
        if self.kd_alignment_regions is not None and not self.native_thinking_alignment:
            raise ConfigError(
                "only native alignment knows regions",
                where="kd_alignment_regions",
                got=self.kd_alignment_regions,
                fix="set native_thinking_alignment, or leave the regions out",
            )
        if self.kd_alignment_regions == []:
            raise ConfigError(
                "without a region nothing is aligned",
                where="kd_alignment_regions",
                got="[]",
                expected="null, or some of reasoning, close, answer, eot",
            )
        if self.num_packed_rows != 1:
            raise ConfigError(
                "packing is not there yet", where="num_packed_rows", got=self.num_packed_rows, expected=1
            )
        return self

"""Settings of one of several teachers: `teachers.<name>` in YAML, `--teachers.<name>.<field>` as options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, field_validator

from atroposlib.config.server import APIServerConfig

ALL = "all"
NAMED = "named"
OWN_TEMPLATE = "auto"
TOOLS = "tools"
OUR_ARGUMENTS = {"messages", "conversation", "chat_template", "tokenize", "add_generation_prompt"}
"""What whoever renders a prompt says itself; ``chat_template`` is a setting of its own."""

MOST_TOP_K = 255
"""A row of a group holds at most 256 columns, and one of them is the token that stands there."""


@dataclass(frozen=True, slots=True)
class TeacherLimits:
    """How much is asked of a teacher's servers, and for how long.

    Attributes:
        patience_s: Seconds after which a sequence that no server has scored is given up.
        tokens_in_flight: Most tokens that one server works on at once; a longer sequence goes alone.
    """

    patience_s: float = 120.0
    tokens_in_flight: int = 65_536


class TeacherTuning(BaseModel):
    """How all teachers of a run are asked, and what is kept of their scores."""

    teacher_tokens_in_flight: int = Field(
        65_536, ge=1, description="Most tokens that one teacher server works on at once."
    )
    teacher_cache_mb: int = Field(
        256, ge=0, description="Megabytes of teacher scores kept in memory; 0 keeps none."
    )
    teacher_cache_path: str | None = Field(
        None, description="SQLite file that keeps teacher scores over restarts; null for none."
    )


class TeacherConfig(APIServerConfig):
    """One teacher: a server, or several replicas that serve the same model."""

    replicas: list[APIServerConfig] = Field(
        [],
        description="Servers that serve this teacher; what one leaves out it takes from the teacher's own "
        "settings. Empty for the one server of base_url.",
    )
    weight: float = Field(1.0, ge=0.0, description="Weight of this teacher in a mixture; 0 asks it nothing.")
    top_k: int | None = Field(
        None,
        ge=-1,
        le=MOST_TOP_K,
        description="Top-k tokens asked of this teacher; null takes env.teacher_top_k.",
    )
    chat_template: str | None = Field(
        OWN_TEMPLATE,
        description="Template by which this teacher's prompt is rendered where it has context of its own or "
        "another tokenizer: auto for its tokenizer's own, a file, or null for plain text.",
    )
    chat_template_kwargs: dict[str, Any] = Field(
        {}, description="Values for the template besides the messages, such as enable_thinking or tools."
    )
    system_prompt: str | None = Field(
        None, description="System prompt that only this teacher sees, before the student's own."
    )
    route: str = Field(
        ALL,
        pattern=r"^(all|named|env:[^,]+(,[^,]+)*)$",
        description="Groups that go to this teacher: all; named for those whose overrides name it; "
        "env:NAME[,NAME] for those of these environments.",
    )

    @field_validator("chat_template_kwargs")
    @classmethod
    def _says_nothing_that_we_say(cls, values: dict[str, Any]) -> dict[str, Any]:
        if ours := sorted(OUR_ARGUMENTS & values.keys()):
            raise ValueError(f"not a value for the template: {', '.join(ours)}")
        return values

    def servers(self) -> list[APIServerConfig]:
        """One config for each server."""
        own = {
            name: getattr(self, name) for name in self.model_fields_set & set(APIServerConfig.model_fields)
        }
        replicas = self.replicas or [APIServerConfig()]
        return [
            APIServerConfig(**{**own, **{name: getattr(one, name) for name in one.model_fields_set}})
            for one in replicas
        ]

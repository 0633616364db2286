"""Settings and commands that the tests of this folder share."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from atroposlib.config.env import TeacherDistillationConfig
from atroposlib.config.runner import Cmd, prefixed
from atroposlib.config.server import APIServerConfig, ServerManagerConfig


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Literal["forward", "reverse"] = Field("forward", description="Direction.")
    weight: float = Field(1.0, ge=0)


class Settings(BaseModel):
    """Settings with one field of every kind."""

    model_config = ConfigDict(extra="forbid")

    count: int = Field(3, ge=-1, le=10, description="How many.")
    rate: float = 0.5
    name: str = ""
    note: str | None = None
    wanted: bool = True
    maybe: bool | None = None
    colour: Colour = Colour.RED
    effort: Literal["low", "high"] | None = None
    stops: list[str] = Field(default_factory=list)
    sizes: list[int] = Field(default_factory=list)
    limits: list[float] | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    extra: dict[str, Any] = Field(default_factory=dict)
    one_or_many: str | list[str] = ""
    number_or_text: int | str = 0
    inner: Inner = Inner()
    parts: list[Inner] = Field(default_factory=list)
    key: str = Field("hidden-default", repr=False, description="A secret.")

    @field_validator("name")
    @classmethod
    def _no_spaces(cls, value: str) -> str:
        if " " in value:
            raise ValueError("name must be one word")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.name == "clash" and self.count > 5:
            raise ValueError("clash needs count <= 5")
        return self


class Required(BaseModel):
    """Settings that need a model."""

    model_config = ConfigDict(extra="forbid")

    model: str
    steps: int = 1


SEEN: list[Any] = []


def record(settings: BaseModel) -> None:
    """A target for run_settings that keeps what it was given."""
    SEEN.append(settings)


class Serve(  # type: ignore[misc]  # bases are made at run time, as the seed's command class makes them
    prefixed(TeacherDistillationConfig, "env."),
    prefixed(APIServerConfig, "openai."),
    prefixed(APIServerConfig, "teacher."),
    ServerManagerConfig,
    Cmd,
):
    """Serve an environment.

    This part of the docstring is not for the summary.
    """

    config: str | None = Field(None, description="YAML file.")

    def run(self) -> None:
        SEEN.append(self)

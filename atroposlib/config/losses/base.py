"""What all settings of a loss share, and the words in which a loss is told."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field


class LossTold(NamedTuple):
    """A loss for people.

    Attributes:
        formula: What is computed, one line a line.
        needs: What the groups must carry.
        bias: What it is not, or what it leaves out.
        use: When to take it.
    """

    formula: str
    needs: str
    bias: str
    use: str


class LossSettings(BaseModel):
    """One loss of a run."""

    model_config = ConfigDict(extra="forbid")

    told: ClassVar[LossTold]

    weight: float = Field(1.0, ge=0, description="Factor on this loss; 0 only reports it.")


class TeacherLossSettings(LossSettings):
    """One loss that reads what teachers said."""

    teachers: list[str] | None = Field(
        None,
        min_length=1,
        description="Teachers that this loss learns from, by name; null for all but one named reference.",
    )

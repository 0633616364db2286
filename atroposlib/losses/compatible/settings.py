"""The base of the loss classes' settings: wrong ones are refused when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from atroposlib.config.mistakes import Location, from_validation, raise_all

Made = TypeVar("Made", bound="Settings")


class Settings(BaseModel):
    """Settings of one loss class; unknown keys and values outside their limits are refused.

    Raises:
        ConfigError: One line a mistake, each naming its key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        def where(location: Location) -> str:
            return ".".join(str(step) for step in (type(self).__name__, *location))

        try:
            super().__init__(**values)
        except ValidationError as error:
            raise_all(from_validation(error, type(self), values, where), error)

    @classmethod
    def of(cls: type[Made], given: Made | Mapping[str, Any]) -> Made:
        """Settings as they are, or made from a mapping (a section of a YAML file)."""
        return given if isinstance(given, cls) else cls(**dict(given))

"""pydantic's validation errors as one clear line a mistake, each naming the flag or the YAML line."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from atroposlib.config.annotations import choices, describe, is_secret, models_in
from atroposlib.config.suggest import did_you_mean
from atroposlib.errors import AtroposError, ConfigError, UsageError

Location = tuple[str | int, ...]
CUSTOM_TYPES = ("value_error", "assertion_error")


class Mistakes(ConfigError):
    """Several mistakes of one run, told one a line.

    Args:
        errors: The mistakes in the order in which they are told; at least one.
    """

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__("; ".join(error.what for error in errors), code=errors[0].code)
        self.errors = list(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def raise_all(errors: Sequence[UsageError], cause: Exception | None = None) -> NoReturn:
    """Raise the only mistake, or all of them as :class:`Mistakes`."""
    raise (errors[0] if len(errors) == 1 else Mistakes(errors)) from cause


def errors_of(error: UsageError) -> list[UsageError]:
    """The single mistakes that an error tells of."""
    return error.errors if isinstance(error, Mistakes) else [error]


def from_validation(
    error: ValidationError,
    model_cls: type[BaseModel],
    data: Mapping[str, Any],
    where: Callable[[Location], str | None],
) -> list[ConfigError]:
    """One error a mistake.

    Args:
        error: What pydantic found.
        model_cls: The class that was validated.
        data: What it was given.
        where: Names the place of a location in it: a flag, or a line of a YAML file.
    """
    places: dict[tuple[Location, bool], _Place] = {}
    for detail in error.errors(include_url=False):
        place = _place(detail, model_cls, data)
        # The members of a union each report the same value: one mistake.
        same = places.setdefault((place.location, detail["type"] in CUSTOM_TYPES), place)
        same.details.append(detail)
    return [_told(place, where(place.location)) for place in places.values()]


def from_title(error: ValidationError) -> list[ConfigError]:
    """The same for settings of which only the class's name is known; the values are not shown."""
    mistakes: list[ConfigError] = []
    for detail in error.errors(include_url=False, include_input=False):
        where = ".".join(str(step) for step in (error.title, *detail["loc"]))
        mistakes.append(ConfigError(detail["msg"], code="usage.bad_value", where=where))
    return mistakes


@dataclass
class _Place:
    """Where in the settings pydantic found something, and what."""

    location: Location
    field: FieldInfo | None
    known: list[str]
    details: list[ErrorDetails] = dataclass_field(default_factory=list)


def _place(detail: ErrorDetails, model_cls: type[BaseModel], data: Mapping[str, Any]) -> _Place:
    """Follow pydantic's location through the settings classes.

    pydantic adds the name of the tried type for each member of a union: such a step is left out.
    """
    kept: list[str | int] = []
    field: FieldInfo | None = None
    models, value = [model_cls], dict(data)
    last = len(detail["loc"]) - 1
    for position, step in enumerate(detail["loc"]):
        found = next((model.model_fields[str(step)] for model in models if step in model.model_fields), None)
        inside = _member(value, step)
        is_name = detail["type"] in ("missing", "extra_forbidden") and position == last
        if found is None and inside is None and not is_name:
            continue
        if found is not None:
            field, models = found, models_in(found.annotation)
        kept.append(step)
        value = inside
    return _Place(tuple(kept), field, [name for model in models for name in model.model_fields])


def _member(value: Any, step: str | int) -> Any:
    if isinstance(value, BaseModel):
        return getattr(value, str(step), None)
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, (list, tuple)) and isinstance(step, int) and step < len(value):
        return value[step]
    return None


def _told(place: _Place, where: str | None) -> ConfigError:
    detail, field = place.details[0], place.field
    if detail["type"] == "extra_forbidden":
        fix = did_you_mean(str(place.location[-1]), place.known) or f"known: {', '.join(place.known)}"
        return ConfigError("unknown option", code="usage.unknown_option", where=where, fix=fix)
    if detail["type"] == "missing":
        expected = describe(field.annotation, field.metadata) if field else None
        return ConfigError("a value is required", code="usage.missing_value", where=where, expected=expected)
    if detail["type"] in CUSTOM_TYPES:
        return _own_words(detail, where, field)
    if detail["type"] == "model_type" or (
        detail["type"] == "dict_type" and field and models_in(field.annotation)
    ):
        return _no_settings(place, where)
    expected, what = _expectation(place.details)
    return ConfigError(
        what,
        code="usage.bad_value",
        where=where,
        got=shown(detail["input"], field),
        expected=expected,
        fix=_nearest_choice(detail["input"], field),
    )


def _no_settings(place: _Place, where: str | None) -> ConfigError:
    """A value in the place of settings. It may be the value of any of them, so a text is not shown."""
    *above, name = place.location
    value = place.details[0]["input"]
    # Otherwise a setting of a family's member stands where the member's name belongs.
    is_at_home = place.field is None or models_in(place.field.annotation)
    path = ".".join(str(step) for step in (*above, "NAME", name))
    return ConfigError(
        "must be a mapping",
        code="usage.bad_value",
        where=where,
        got="a text" if isinstance(value, str) else shown(value, None),
        expected="`key: value` lines",
        fix=None if is_at_home else f"write it as {path}",
    )


def _own_words(detail: ErrorDetails, place: str | None, field: FieldInfo | None) -> ConfigError:
    """A settings class's own complaint, as it words it."""
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, AtroposError):
        return ConfigError(
            cause.what,
            code=cause.code,
            where=cause.where or place,
            got=cause.got,
            expected=cause.expected,
            fix=cause.fix,
        )
    what = str(cause) or "the value is refused"
    code = "config.invalid" if field is None else "usage.bad_value"
    return ConfigError(" ".join(what.split()), code=code, where=place)


def _expectation(details: list[ErrorDetails]) -> tuple[str | None, str]:
    """What was expected, from pydantic's sentences, and what to call the mistake."""
    said = [detail["msg"].removeprefix("Input should be ") for detail in details]
    expected = [text.partition(", unable to ")[0] for text in said]
    if all(detail["msg"].startswith("Input should be ") for detail in details):
        return " or ".join(dict.fromkeys(expected)), "not a valid value"
    return None, "; ".join(dict.fromkeys(detail["msg"] for detail in details))


def _nearest_choice(value: object, field: FieldInfo | None) -> str | None:
    if field is None or not isinstance(value, str) or is_secret(field):
        return None
    return did_you_mean(value, choices(field.annotation))


def shown(value: object, field: FieldInfo | None) -> str | None:
    """A wrong value for an error message: cut when long, its kind alone when it may hold a secret."""
    if field is not None and is_secret(field):
        return None
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple, set)):
        return "a list"
    return "null" if value is None else _short(value)


def _short(value: object) -> str:
    printer = reprlib.Repr()
    printer.maxstring = printer.maxother = printer.maxlong = 80
    return printer.repr(value)

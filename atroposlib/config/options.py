"""The command-line options of a settings class, and classes whose fields carry a namespace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from atroposlib.config.annotations import describe, family_model, is_secret, nested_model

SEPARATOR = "."
ANY_NAME = "NAME"
"""Stands in an option's name and path where the user writes a name: `teachers.NAME.weight`."""


@dataclass(frozen=True)
class Option:
    """One `--name` of a command.

    Attributes:
        name: As typed, without the dashes: `env.group_size`.
        path: Keys from the settings class down to the field; the first may itself hold dots.
        field: The pydantic field that takes the value.
        default: Value that holds when nobody sets the option; PydanticUndefined when there is none.
    """

    name: str
    path: tuple[str, ...]
    field: FieldInfo
    default: Any

    @property
    def group(self) -> str:
        """Namespace of the option, empty for a plain one."""
        return self.name.rpartition(SEPARATOR)[0]

    @property
    def secret(self) -> bool:
        """Whether the value must never be shown."""
        return is_secret(self.field)

    @property
    def kind(self) -> str:
        """The accepted values in words."""
        return describe(self.field.annotation, self.field.metadata)

    @property
    def is_family(self) -> bool:
        """Whether it stands for one option of every name."""
        return ANY_NAME in self.path

    def named(self, name: str) -> Option:
        """The option of one member of a family: `teachers.math.weight` of `teachers.NAME.weight`."""
        path = tuple(name if step == ANY_NAME else step for step in self.path)
        return replace(self, name=SEPARATOR.join(path), path=path)


def options_of(model_cls: type[BaseModel]) -> dict[str, Option]:
    """Every option of a settings class by name, in the order of its fields; nested models are dotted.

    A mapping of names to models gives the options of its model once, with NAME in the place of the name.
    """
    return {option.name: option for option in _options(model_cls, (), {})}


def _options(
    model_cls: type[BaseModel], path: tuple[str, ...], defaults: Mapping[str, Any]
) -> Iterator[Option]:
    for name, field in model_cls.model_fields.items():
        default = defaults.get(name, _default(field))
        here = (*path, name)
        nested, family = nested_model(field.annotation), family_model(field.annotation)
        if family is not None:
            yield from _options(family, (*here, ANY_NAME), {})
        elif nested is None:
            yield Option(SEPARATOR.join(here), here, field, default)
        else:
            inner = dict(default) if isinstance(default, nested) else {}
            yield from _options(nested, here, inner)


def _default(field: FieldInfo) -> Any:
    """The field's default, None when it is computed from the other values."""
    return None if _needs_values(field) else field.get_default(call_default_factory=True)


def _needs_values(field: FieldInfo) -> bool:
    # pydantic before 2.10 has no factories that take the validated values.
    return bool(getattr(field, "default_factory_takes_validated_data", False))


def prefixed(model_cls: type[BaseModel], prefix: str, defaults: BaseModel | None = None) -> type[BaseModel]:
    """A class with every field of `model_cls` under `<prefix><field>`, to be a base of a command.

    Type, constraints, description and default are kept. No field is required, because the value may
    come from a file. Fields explicitly set in `defaults` show its values as their defaults.
    """
    given = {} if defaults is None else {name: getattr(defaults, name) for name in defaults.model_fields_set}
    fields: dict[str, Any] = {
        f"{prefix}{name}": (constrained(field), redefaulted(field, given.get(name, PydanticUndefined)))
        for name, field in model_cls.model_fields.items()
    }
    config = ConfigDict(
        extra="forbid", protected_namespaces=(), arbitrary_types_allowed=True, defer_build=True
    )
    return create_model(f"{model_cls.__name__}Flags", __config__=config, **fields)


def constrained(field: FieldInfo) -> Any:
    """The annotation of a field with its limits."""
    # Given as Annotated, since create_model drops the limits of a FieldInfo that is passed as a default.
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def redefaulted(field: FieldInfo, default: Any = PydanticUndefined) -> Any:
    """A new Field with the description of `field`, never required, and with `default` when it is given."""
    shown: dict[str, Any] = {"description": field.description, "repr": field.repr}
    if default is not PydanticUndefined:
        return Field(default, **shown)
    if field.default_factory is not None and not _needs_values(field):
        return Field(default_factory=field.default_factory, **shown)
    return Field(None if field.default is PydanticUndefined else field.default, **shown)

"""What a pydantic field accepts, read from its annotation: for parsing flags and for help texts."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

WORDS = {int: "INT", float: "NUMBER", str: "TEXT", bool: "true|false", Path: "PATH", type(None): "null"}
LIMITS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union without Annotated wrappers; a single type gives a list of one."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [inner for member in get_args(annotation) for inner in alternatives(member)]
    return [annotation]


def is_optional(annotation: Any) -> bool:
    """Whether null is accepted."""
    return any(member in (None, type(None), Any) for member in alternatives(annotation))


def is_switch(annotation: Any) -> bool:
    """Whether the field is true or false (or null) and nothing else."""
    return set(alternatives(annotation)) - {type(None)} == {bool}


def is_number(annotation: Any) -> bool:
    """Whether the field is an integer or a float (or null) and nothing else."""
    members = set(alternatives(annotation)) - {type(None)}
    return bool(members) and members <= {int, float}


def sequence_item(annotation: Any) -> Any | None:
    """Annotation of the items when the field is a list, tuple or set (or null), else None."""
    members = [member for member in alternatives(annotation) if member is not type(None)]
    if len(members) != 1:
        return None
    origin = get_origin(members[0]) or members[0]
    if not isinstance(origin, type) or issubclass(origin, (str, bytes, Mapping)):
        return None
    if not issubclass(origin, (Sequence, Set)):
        return None
    arguments = get_args(members[0])
    return arguments[0] if arguments else Any


def nested_model(annotation: Any) -> type[BaseModel] | None:
    """The model class when the field is one settings model (or null), else None."""
    members = [member for member in alternatives(annotation) if member is not type(None)]
    if len(members) == 1 and isinstance(members[0], type) and issubclass(members[0], BaseModel):
        return members[0]
    return None


def family_model(annotation: Any) -> type[BaseModel] | None:
    """The model class when the field maps names to settings models, else None."""
    members = alternatives(annotation)
    if len(members) != 1 or get_origin(members[0]) not in (dict, Mapping):
        return None
    key, value = get_args(members[0])
    return nested_model(value) if alternatives(key) == [str] else None


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The settings models anywhere in an annotation: members of unions, items of lists and mappings."""
    found: list[type[BaseModel]] = []
    for member in alternatives(annotation):
        if isinstance(member, type) and issubclass(member, BaseModel):
            found.append(member)
        elif get_origin(member) is not Literal:
            found.extend(model for inner in get_args(member) for model in models_in(inner))
    return found


def choices(annotation: Any) -> list[str]:
    """The values of every Literal and Enum member of the annotation, as the user writes them."""
    values: list[Any] = []
    for member in alternatives(annotation):
        if get_origin(member) is Literal:
            values.extend(get_args(member))
        elif isinstance(member, type) and issubclass(member, Enum):
            values.extend(item.value for item in member)
    return [str(value) for value in values]


def is_secret(field: FieldInfo) -> bool:
    """Whether the value must never be shown: a field with repr=False or of a secret type."""
    members = alternatives(field.annotation)
    return field.repr is False or any(member in (SecretStr, SecretBytes) for member in members)


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """The accepted values in one or two words: `INT >= -1`, `TEXT|null`, `mask|drop`."""
    words = "|".join(dict.fromkeys(_word(member) for member in alternatives(annotation)))
    limits = [f"{sign} {getattr(m, name)}" for m in metadata for name, sign in LIMITS if hasattr(m, name)]
    return " ".join([words, *limits])


def _word(member: Any) -> str:
    if member in WORDS:
        return WORDS[member]
    if options := choices(member):
        return "|".join(options)
    if (item := sequence_item(member)) is not None:
        return f"LIST of {describe(item)}"
    origin = get_origin(member) or member
    if isinstance(origin, type) and issubclass(origin, (Mapping, BaseModel)):
        return "JSON"
    if member in (SecretStr, SecretBytes):
        return "TEXT"
    return str(getattr(member, "__name__", member)).upper()

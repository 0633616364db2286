"""Atropos's command-line helpers under their old names, for environments that build their own commands."""

from __future__ import annotations

import sys
from typing import Any

from pydantic import BaseModel, create_model

from atroposlib.config.options import constrained, prefixed, redefaulted
from atroposlib.config.runner import running_flags


def get_prefixed_pydantic_model(base_model: type[BaseModel], prefix: str) -> type[BaseModel]:
    """A class with every field of `base_model` under `<prefix><field>`, limits and defaults kept."""
    return prefixed(base_model, prefix)


def merge_dicts(*dicts: dict[str, Any]) -> dict[str, Any]:
    """One mapping in which later values win; mappings at the same key are merged in their turn."""
    merged: dict[str, Any] = {}
    for layer in dicts:
        for key, value in layer.items():
            below = merged.get(key)
            if isinstance(below, dict) and isinstance(value, dict):
                merged[key] = merge_dicts(below, value)
            else:
                merged[key] = value
    return merged


def extract_namespace(model: Any, prefix: str) -> dict[str, Any]:
    """The fields of a model or mapping whose names begin with `prefix`, without it.

    Raises:
        TypeError: For anything but a mapping or an object with `model_dump()` or `to_dict()`.
    """
    if isinstance(model, dict):
        data = model
    elif hasattr(model, "model_dump"):
        data = model.model_dump()
    elif hasattr(model, "to_dict"):
        data = model.to_dict()
    else:
        raise TypeError("Model must have model_dump(), to_dict(), or be a dict.")
    return {key.removeprefix(prefix): value for key, value in data.items() if key.startswith(prefix)}


def adjust_model_defaults(
    model_class: type[BaseModel], defaults: dict[str, Any] | BaseModel
) -> type[BaseModel]:
    """A subclass `<Name>WithDefaults` in which the fields named in `defaults` have those defaults."""
    values = defaults.model_dump() if isinstance(defaults, BaseModel) else defaults
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name in model_class.model_fields:
            field = model_class.model_fields[name]
            fields[name] = (constrained(field), redefaulted(field, value))
    return create_model(f"{model_class.__name__}WithDefaults", __base__=model_class, **fields)


def get_double_dash_flags() -> dict[str, Any]:
    """The options of the command line by name, without their dashes.

    While a command runs these are its parsed values; otherwise the words of `sys.argv`: text, None for
    `None`, and True for an option that no value follows. A negative number is a value.
    """
    running = running_flags.get()
    return dict(running) if running is not None else _words(sys.argv[1:])


def _words(argv: list[str]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    name: str | None = None
    for word in argv:
        if word.startswith("--"):
            name, equals, text = word.removeprefix("--").partition("=")
            flags[name] = text if equals else True
            name = None if equals else name
        elif name is not None:
            flags[name], name = word, None
    return {name: None if value == "None" else value for name, value in flags.items() if name}

"""Settings built from three layers: defaults of the environment, then YAML, then the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from atroposlib.config.annotations import (
    describe,
    family_model,
    is_number,
    is_optional,
    nested_model,
)
from atroposlib.config.mistakes import Location, from_validation, raise_all
from atroposlib.config.suggest import did_you_mean
from atroposlib.config.yaml_file import YamlFile
from atroposlib.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
Keys = tuple[str | int, ...]


def build(
    model_cls: type[Model],
    *,
    defaults: BaseModel | None,
    yaml: YamlFile,
    keys: Keys,
    flags: Mapping[str, Any],
    prefix: str = "",
) -> Model:
    """Validated settings; a field set by a later layer replaces what an earlier layer said.

    Fields that are settings models themselves, and mappings of names to such models, are merged field by
    field; lists and other mappings are replaced.

    Args:
        model_cls: Class of the result.
        defaults: Settings whose explicitly set fields are the lowest layer.
        yaml: File whose mapping at `keys` is the middle layer; nothing there counts as an empty mapping.
        keys: Where in the file the mapping stands.
        flags: Options of the command line by name, the highest layer. With a `prefix`, those of its
            namespace are taken and the others left alone, so one mapping serves every namespace.
        prefix: Namespace of the options, with its dot: `env.`.

    Returns:
        Settings whose `model_fields_set` is exactly what a layer has set.

    Raises:
        ConfigError: One line a mistake, each naming the flag or the line of the YAML file.
    """
    lowest = _explicit(defaults, model_cls)
    middle = _section(yaml, keys)
    highest = {name.removeprefix(prefix): value for name, value in flags.items() if name.startswith(prefix)}
    merged = _merge(model_cls, _merge(model_cls, lowest, middle), highest)

    layers = _Layers(lowest, yaml, keys, highest, prefix)
    mistakes = _booleans_for_numbers(model_cls, middle, layers)
    try:
        settings = model_cls.model_validate(merged)
    except ValidationError as error:
        raise_all([*mistakes, *from_validation(error, model_cls, merged, layers.where)], error)
    if mistakes:
        raise_all(mistakes)
    return settings


def given(yaml: YamlFile, flags: Mapping[str, Any], namespace: str, field: str) -> bool:
    """Whether the user has set a field, in the YAML mapping `namespace` or as `--<namespace>.<field>`."""
    section = yaml.data.get(namespace)
    return f"{namespace}.{field}" in flags or (isinstance(section, Mapping) and field in section)


def refuse_unknown_keys(yaml: YamlFile, known: set[str]) -> None:
    """Refuse top-level keys of a file that nothing reads.

    Raises:
        ConfigError: `usage.unknown_option`, one line for each such key.
    """
    mistakes = [
        ConfigError(
            "unknown option",
            code="usage.unknown_option",
            where=yaml.where(key),
            fix=did_you_mean(str(key), known) or f"known: {', '.join(sorted(known))}",
        )
        for key in yaml.data
        if key not in known
    ]
    if mistakes:
        raise_all(mistakes)


def _section(yaml: YamlFile, keys: Keys) -> dict[str, Any]:
    value: Any = yaml.data
    for position, key in enumerate(keys):
        if isinstance(key, int):
            value = value[key] if isinstance(value, list) and key < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(key)
        elif value is not None:
            raise _no_mapping(yaml, keys[:position], value)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _no_mapping(yaml, keys, value)
    return {str(key): member for key, member in value.items()}


def _no_mapping(yaml: YamlFile, keys: Keys, value: object) -> ConfigError:
    return ConfigError(
        "must be a mapping",
        code="usage.bad_value",
        where=yaml.where(*keys),
        got=f"a {type(value).__name__}",
        expected="`key: value` lines",
    )


def _explicit(settings: BaseModel | None, model_cls: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model that were set, left as they are, and that `model_cls` has too."""
    if settings is None:
        return {}
    takes_more = model_cls.model_config.get("extra") == "allow"
    return {
        name: getattr(settings, name)
        for name in settings.model_fields_set
        if takes_more or name in model_cls.model_fields
    }


def _merge(model_cls: type[BaseModel], low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for name, value in high.items():
        field = model_cls.model_fields.get(name)
        nested = nested_model(field.annotation) if field else None
        family = family_model(field.annotation) if field else None
        if field and (nested or family) and value is None and not is_optional(field.annotation):
            # A YAML section whose lines are all commented out.
            continue
        below, above = _mapping(merged.get(name)), _mapping(value)
        if family is not None and above is not None:
            merged[name] = _merge_family(family, below or {}, above)
        elif nested is not None and below is not None and above is not None:
            merged[name] = _merge(nested, below, above)
        else:
            merged[name] = value
    return merged


def _merge_family(
    model_cls: type[BaseModel], low: Mapping[str, Any], high: Mapping[str, Any]
) -> dict[str, Any]:
    merged = {str(name): value for name, value in low.items()}
    for name, value in high.items():
        above = {} if value is None else _mapping(value)
        below = _mapping(merged.get(str(name))) or {}
        merged[str(name)] = value if above is None else _merge(model_cls, below, above)
    return merged


def _mapping(value: object) -> dict[str, Any] | None:
    if isinstance(value, BaseModel):
        return _explicit(value, type(value))
    return dict(value) if isinstance(value, Mapping) else None


@dataclass(frozen=True)
class _Layers:
    """The layers that settings were merged from, to tell where a wrong value comes from."""

    defaults: Mapping[str, Any]
    yaml: YamlFile
    keys: Keys
    flags: Mapping[str, Any]
    prefix: str

    def where(self, location: Location) -> str | None:
        """The flag, the YAML line or the default that a location of the settings comes from."""
        if not location:
            return self.yaml.where(*self.keys) or None
        names = ".".join(str(step) for step in location)
        if _stands_in(self.flags, location):
            return f"--{self.prefix}{'.'.join(step for step in location if isinstance(step, str))}"
        if _stands_in(_section(self.yaml, self.keys), location):
            return self.yaml.where(*self.keys, *location)
        if _stands_in(self.defaults, location):
            return f"default of {self.prefix}{names}"
        if any(isinstance(key, int) for key in self.keys):
            return self.yaml.where(*self.keys, *location)
        return f"--{self.prefix}{names}"


def _stands_in(layer: Mapping[str, Any], location: Location) -> bool:
    value: Any = layer
    for step in location:
        if isinstance(value, (list, tuple)) and isinstance(step, int):
            return True
        value = _mapping(value)
        if value is None or step not in value:
            return False
        value = value[step]
    return True


def _booleans_for_numbers(
    model_cls: type[BaseModel], layer: Mapping[str, Any], layers: _Layers, above: Location = ()
) -> list[ConfigError]:
    """YAML's true and false where a number belongs: pydantic would read them as 1 and 0."""
    mistakes: list[ConfigError] = []
    for name, value in layer.items():
        field = model_cls.model_fields.get(name)
        if field is None:
            continue
        location, nested = (*above, name), nested_model(field.annotation)
        family = family_model(field.annotation)
        if isinstance(value, bool) and is_number(field.annotation):
            mistakes.append(
                ConfigError(
                    "not a valid value",
                    code="usage.bad_value",
                    where=layers.where(location),
                    got=str(value).lower(),
                    expected=describe(field.annotation, field.metadata),
                )
            )
        elif nested is not None and isinstance(value, Mapping):
            mistakes.extend(_booleans_for_numbers(nested, value, layers, location))
        elif family is not None and isinstance(value, Mapping):
            members = [(member, inner) for member, inner in value.items() if isinstance(inner, Mapping)]
            for member, inner in members:
                mistakes.extend(_booleans_for_numbers(family, inner, layers, (*location, member)))
    return mistakes

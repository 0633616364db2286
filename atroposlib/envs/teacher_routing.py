"""Which teachers a group goes to, with what weight and top-k."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from atroposlib.config.suggest import did_you_mean
from atroposlib.config.teacher import ALL, NAMED, TeacherConfig
from atroposlib.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Assignment:
    """One teacher that is to score a group.

    Attributes:
        name: The teacher's.
        weight: Its share in the mixture, > 0.
        top_k: Top-k tokens asked of it, >= 0.
    """

    name: str
    weight: float
    top_k: int

    def facts(self, model: str, fingerprint: str, *, same_tokenizer: bool = True) -> dict[str, Any]:
        """Its entry in ``teachers`` but for the arrays.

        Args:
            model: Model id that it answers for.
            fingerprint: Of its tokenizer, empty where that is not known.
            same_tokenizer: Whether its ids are the student's.
        """
        return {
            "name": self.name,
            "weight": self.weight,
            "model": model,
            "tokenizer_fingerprint": fingerprint,
            "same_tokenizer": same_tokenizer,
            "temperature": 1.0,
        }


def assigned(
    configs: Mapping[str, TeacherConfig],
    overrides: Mapping[str, Any],
    *,
    top_k: int,
    env_names: Collection[str],
) -> list[Assignment]:
    """The teachers of a group, in the order of their settings; none when it is not to be scored.

    Args:
        configs: All teachers by name.
        overrides: ``group_overrides``: ``teacher`` (a name or several) takes the place of the teachers'
            routes, ``teacher_weights`` (name to weight) of their weights, ``teacher_top_k`` of every top-k
            (null takes none's place), and ``skip_teacher_top_k`` asks nobody.
        top_k: Of teachers that set none themselves.
        env_names: Names of the environment.

    Raises:
        ConfigError: The overrides name a teacher that does not exist, or are of another type.
    """
    if overrides.get("skip_teacher_top_k", False):
        return []
    named, weights = _names_in(overrides), _weights_in(overrides)
    for name in (*named, *weights):
        _require_known(name, configs)
    own_k = _top_k_in(overrides)
    found: list[Assignment] = []
    for name, config in configs.items():
        weight = weights.get(name, config.weight)
        k = next(value for value in (own_k, config.top_k, top_k) if value is not None)
        routed = name in named if named else _takes(config.route, env_names)
        if routed and weight > 0 and k >= 0:
            found.append(Assignment(name, weight, k))
    return found


def _names_in(overrides: Mapping[str, Any]) -> list[str]:
    wanted = overrides.get("teacher")
    names = [wanted] if isinstance(wanted, str) else wanted or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _wrong("teacher", wanted, "a teacher's name, or a list of names")
    return list(names)


def _weights_in(overrides: Mapping[str, Any]) -> dict[str, float]:
    weights = overrides.get("teacher_weights") or {}
    is_mapping = isinstance(weights, Mapping)
    if not is_mapping or not all(isinstance(one, Real) and float(one) >= 0 for one in weights.values()):
        raise _wrong("teacher_weights", weights, "a weight >= 0 for each teacher's name")
    return {str(name): float(weight) for name, weight in weights.items()}


def _top_k_in(overrides: Mapping[str, Any]) -> int | None:
    top_k = overrides.get("teacher_top_k")
    if top_k is not None and not isinstance(top_k, Integral):
        raise _wrong("teacher_top_k", top_k, "an integer or null")
    return None if top_k is None else int(top_k)


def _wrong(name: str, got: object, expected: str) -> ConfigError:
    return ConfigError(
        "not a valid value", where=f"group_overrides.{name}", got=repr(got)[:80], expected=expected
    )


def _takes(route: str, env_names: Collection[str]) -> bool:
    if route in (ALL, NAMED):
        return route == ALL
    return not set(route.removeprefix("env:").split(",")).isdisjoint(env_names)


def _require_known(name: str, configs: Mapping[str, TeacherConfig]) -> None:
    if name not in configs:
        raise ConfigError(
            "no teacher has this name",
            where="group_overrides",
            got=repr(name),
            expected=" or ".join(configs),
            fix=did_you_mean(name, configs),
        )

"""Refuses settings and rows that a loss cannot take."""

from __future__ import annotations

from torch import Tensor

from atroposlib.errors import ConfigError, LossError


def require_choice(where: str, got: str, choices: tuple[str, ...]) -> None:
    """A name that is none must not stand for another.

    Raises:
        ConfigError: ``got`` is not among ``choices``.
    """
    if got not in choices:
        raise ConfigError("no such choice", where=where, got=got, expected=f"one of {', '.join(choices)}")


def require_temperature(temperature: float, where: str = "temperature") -> None:
    """Logits are divided by it.

    Raises:
        ConfigError: It is not above 0.
    """
    if not temperature > 0:
        raise ConfigError("a temperature must be above 0", where=where, got=temperature)


def require_rows(count: int, **by_name: Tensor | None) -> None:
    """One number a row: another shape would be stretched over all rows without a word.

    Raises:
        LossError: A tensor that is given is not [``count``].
    """
    for name, values in by_name.items():
        if values is not None and values.shape != (count,):
            raise LossError("not one number a row", where=name, got=list(values.shape), expected=[count])

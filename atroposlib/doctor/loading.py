"""Loads the tokenizers that settings name, each once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.teacher_loading import read_as_written
from atroposlib.envs.telling import first_line
from atroposlib.envs.tokenizer import read_tokenizer


@dataclass(frozen=True, slots=True)
class Tokenizers:
    """Tokenizers by the name that settings give them.

    Attributes:
        found: Those that could be loaded.
        troubles: Why the others could not.
    """

    found: dict[str, Any] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


def tokenizer_name(config: APIServerConfig) -> str:
    """The tokenizer that a server's settings mean, empty where they leave it to the server."""
    named = config.tokenizer_name if config.tokenizer_name not in ("", "none") else config.model_name
    return "" if named == "default" else named


def load_tokenizers(student: str, teachers: Iterable[str]) -> Tokenizers:
    """The tokenizers of all names, the student's as an environment loads it."""
    loaded = Tokenizers()
    for name in dict.fromkeys([student, *teachers]):
        try:
            loaded.found[name] = read_tokenizer(name) if name == student else read_as_written(name)
        except (OSError, ValueError) as failure:
            loaded.troubles[name] = f"{name} cannot be loaded: {first_line(failure)}"
    return loaded

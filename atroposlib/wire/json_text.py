"""JSON text to and from Python values and arrays; integers of any size."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
from pydantic_core import from_json

from atroposlib.errors import WireError
from atroposlib.wire.limits import too_large

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def json_bytes(value: Any) -> bytes:
    """A JSON value as text; numpy's numbers and arrays count as numbers and lists.

    Half a surrogate pair, which UTF-8 cannot say, becomes a question mark.

    Raises:
        TypeError, ValueError: It holds something that JSON cannot carry.
    """
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except orjson.JSONEncodeError:
        # orjson knows 64-bit integers only; a free-form field (a seed, an id) may hold a larger one.
        text = json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="replace")


def parse_json(text: bytes, most_values: int, where: str) -> Any:
    """The value of a JSON text from outside.

    Args:
        text: UTF-8.
        most_values: Commas that it may hold; a parsed value takes many times its text.
        where: What it is called in errors.

    Raises:
        WireError: wire.too_large with more values, wire.bad_encoding when it is no JSON.
    """
    check_values(text, most_values, where)
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise WireError(
            "this is no JSON", code="wire.bad_encoding", where=where, got=str(error)[:200]
        ) from error


def check_values(text: bytes, most: int, where: str | None) -> None:
    """Raise WireError when a JSON text holds more commas than ``most``."""
    if text.count(b",") > most:
        raise too_large("the JSON holds too many values", where=where, most=most)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")

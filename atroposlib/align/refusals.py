"""The error for a tokenizer that a byte table cannot represent."""

from __future__ import annotations

from atroposlib.errors import ConfigError


def unsupported(what: str, where: str, got: object, expected: object = None) -> ConfigError:
    """The refusal of a tokenizer, to be raised.

    Args:
        what: Why its ids cannot be read as bytes, without a full stop.
        where: Place in the tokenizer's files, such as ``tokenizer.json#decoder``.
        got: What stands there.
        expected: What could have been read.
    """
    return ConfigError(
        what,
        code="align.unsupported",
        where=where,
        got=got,
        expected=expected,
        fix="take a model with another tokenizer, or a teacher with the student's own",
    )

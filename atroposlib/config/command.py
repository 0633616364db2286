"""`Cmd`, the base class of commands, without the side effect of importing it."""

from __future__ import annotations

import warnings

# pydantic_cli silences pydantic's deprecation warnings for the whole process when it is imported.
with warnings.catch_warnings():
    from pydantic_cli import Cmd

__all__ = ["Cmd"]

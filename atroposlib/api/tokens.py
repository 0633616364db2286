"""Bearer tokens: made once, kept as hashes in a YAML file, compared in constant time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atroposlib.config.api import Role, TokenSettings
from atroposlib.errors import UsageError


class Token(BaseModel):
    """One token of the file, which holds only its hash."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    role: Role
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class TokenFile(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid")

    tokens: list[Token] = []


def role_of(tokens: Sequence[Token], authorization: str | None) -> Role | None:
    """The role of whoever sent an Authorization header, or None.

    Args:
        tokens: Those that are known.
        authorization: ``Bearer TOKEN``, or ``Basic`` with the token as password, which is what a client sends
            whose URL is ``http://any:TOKEN@host``.
    """
    presented = _presented(authorization or "")
    if presented is None:
        return None
    digest = _hash(presented)
    found = None
    for token in tokens:
        # All are compared, so the time does not tell which one was close.
        if hmac.compare_digest(token.sha256, digest):
            found = token.role
    return found


def read_tokens(path: Path) -> list[Token]:
    """The tokens of a file.

    Raises:
        UsageError: usage.file when it cannot be read, usage.bad_value when it is no such file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            "the token file cannot be read",
            code="usage.file",
            where=str(path),
            got=error.strerror,
            fix="make a token with `atropos token`",
        ) from error
    try:
        return TokenFile.model_validate(yaml.safe_load(text) or {}).tokens
    except (yaml.YAMLError, ValidationError) as error:
        # Neither message is repeated: it may hold what stands in the file.
        raise UsageError(
            "this is no token file", where=str(path), expected="what `atropos token` writes"
        ) from error


def make(settings: TokenSettings) -> None:
    """Make a token, add its hash to the file, print the token.

    Raises:
        UsageError: As :func:`read_tokens`, or when the name is taken.
    """
    tokens = read_tokens(settings.file) if settings.file.exists() else []
    if settings.name in {token.name for token in tokens}:
        raise UsageError("there is a token of this name", where=str(settings.file), got=settings.name)
    secret = secrets.token_urlsafe(32)
    added = Token(name=settings.name, role=settings.role, sha256=_hash(secret))
    _write(settings.file, [*tokens, added])
    # The only time that it is shown: the file keeps no way back to it.
    sys.stdout.write(secret + "\n")


def _write(path: Path, tokens: Sequence[Token]) -> None:
    text = yaml.safe_dump({"tokens": [token.model_dump() for token in tokens]}, sort_keys=False)
    try:
        # Readable by its owner alone, and never half written.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise UsageError(
            "the token file cannot be written", code="usage.file", where=str(path), got=error.strerror
        ) from error


def _presented(authorization: str) -> str | None:
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return None


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

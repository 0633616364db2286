"""How clients of the trajectory API prove who they are, without their secret ever reaching a log."""

from __future__ import annotations

import base64
import os
from urllib.parse import unquote, urlsplit, urlunsplit

from atroposlib.errors import UsageError

TOKEN_VARIABLE = "ATROPOS_TOKEN"  # noqa: S105 - the variable's name, not a token


def api_access(url: str, token: str | None = None) -> tuple[str, dict[str, str]]:
    """The URL without credentials and trailing slash, and the headers that authorize a request.

    Args:
        url: Address of the API; a ``user:password@`` in it wins over any token.
        token: Bearer token; None takes that of the environment variable ``ATROPOS_TOKEN``, if it is set.

    Raises:
        UsageError: The URL is none, or the token cannot stand in a header.
    """
    credentials, clean = _split(url)
    if credentials:
        encoded = base64.b64encode(unquote(credentials).encode()).decode()
        return clean, {"Authorization": f"Basic {encoded}"}
    # A token that was read from a file brings the file's last newline.
    bearer = (os.environ.get(TOKEN_VARIABLE, "") if token is None else token).strip()
    if not all("!" <= character <= "~" for character in bearer):
        raise UsageError(
            "the token holds a character that no header can carry",
            where=TOKEN_VARIABLE if token is None else "token",
            fix="give it as `atropos token` printed it",
        )
    return clean, {"Authorization": f"Bearer {bearer}"} if bearer else {}


def _split(url: str) -> tuple[str, str]:
    """Credentials, and the URL without them."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise UsageError(
            "this is no address of a trajectory API",
            got=repr(url.rpartition("@")[2]),
            fix="write it as http://127.0.0.1:8000",
        )
    credentials, _, host = parts.netloc.rpartition("@")
    return credentials, urlunsplit((parts.scheme, host, parts.path.rstrip("/"), parts.query, ""))

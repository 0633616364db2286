"""Turns a configured ``base_url`` into the addresses of a server's routes."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from atroposlib.errors import ConfigError


def server_root(base_url: str | None) -> str:
    """The URL without its trailing ``/v1``: ``http://host:8000/v1/`` gives ``http://host:8000``.

    Only a whole last path segment counts, so a host or a prefix that contains "v1" stays as it is.

    Raises:
        ConfigError: Not an http(s) URL with a host, or one that carries a user name, query or fragment.
    """
    parts = urlsplit((base_url or "").strip())
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    # The URL itself is not told before it is known to hold no password.
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "a server's base_url holds a user name or password",
            where=f"base_url of {parts.hostname}",
            fix="put the token into api_key",
        )
    if not usable or parts.query or parts.fragment:
        raise ConfigError(
            "a server's base_url is not usable",
            got=repr(base_url),
            expected="a URL such as http://localhost:8000/v1",
            fix="set base_url",
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))

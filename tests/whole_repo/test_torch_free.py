"""The torch-free modules import where torch cannot be imported.

import-linter reads import statements and misses what a package's ``__init__`` drags in, so this runs them.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import atroposlib

NEEDS_TORCH = (
    "atroposlib.collate",
    "atroposlib.losses",
    "atroposlib.modelserver",
    "atroposlib.trainer",
    "atroposlib.demo",
    "atroposlib.vllm_plugin",
)
FREE_ALL_THE_SAME = (
    "atroposlib.trainer.client",
    "atroposlib.trainer.weight_sync",
    "atroposlib.demo.run",
    "atroposlib.demo.summary",
)
SCRIPT = """
import importlib, sys
sys.modules["torch"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def torch_free_modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(atroposlib.__path__, "atroposlib.")]
    return [name for name in found if not name.startswith(NEEDS_TORCH)] + list(FREE_ALL_THE_SAME)


def test_torch_free_modules_import_without_torch() -> None:
    names = torch_free_modules()
    assert len(names) > 20
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_block_really_blocks_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "torch"], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ModuleNotFoundError" in done.stderr

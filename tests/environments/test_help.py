"""Help texts come at once: no model library is imported for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "environments").glob("*.py"))

HEAVY = """
import runpy, sys
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    assert end.code in (0, None), end.code
heavy = sorted({"torch", "transformers", "aiohttp", "datasets", "wandb", "fastapi"} & set(sys.modules))
sys.exit(f"imported {heavy}" if heavy else 0)
"""


@pytest.mark.parametrize("command", ["serve", "process", "evaluate"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_help_imports_no_heavy_library_and_lists_the_options(path: Path, command: str) -> None:
    script = (
        f"import sys; sys.argv = {[str(path), command, '--help']!r}; sys.path.insert(0, {str(path.parent)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script + HEAVY], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    wanted = ["--env.group_size", "--openai.base_url", "--slurm", "--config"]
    teachers = ["--teacher.model_name", "--teachers.NAME.model_name", "--env.teacher_top_k"]
    wanted += teachers if "distill" in path.stem else []
    assert [option for option in wanted if option not in done.stdout] == []

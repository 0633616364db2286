from __future__ import annotations

import subprocess
import sys


def test_importing_the_command_base_silences_no_warning() -> None:
    code = """
import warnings
before = list(warnings.filters)
import atroposlib.config.runner
assert warnings.filters == before
from pydantic_cli import Cmd
assert Cmd is atroposlib.config.runner.Cmd
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")

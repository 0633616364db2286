"""`run-api`, Atropos's command: start the trajectory API."""

from __future__ import annotations

import sys

from atroposlib.config.api import ApiSettings
from atroposlib.config.runner import run_settings


def main() -> None:
    """Start the trajectory API and exit with its exit code."""
    sys.exit(run_settings(ApiSettings, "atroposlib.api.serve:run", sys.argv[1:], prog="run-api"))


if __name__ == "__main__":
    main()

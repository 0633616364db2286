"""The options of `atropos doctor`: those by which an environment's servers are named, and the file of one."""

from __future__ import annotations

import warnings
from typing import Any

from pydantic import Field, create_model

from atroposlib.config.doctor import DoctorEnv
from atroposlib.config.runner import Cmd, passed_flags, prefixed
from atroposlib.config.server import APIServerConfig, ServerManagerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.yaml_file import load_yaml


class _Doctor(ServerManagerConfig, Cmd):
    config: str | None = Field(None, description="YAML file of an environment; options win.")
    teachers: dict[str, TeacherConfig] = Field({}, description="Teachers by name.")

    def run(self) -> int:  # type: ignore[override]  # our runner takes an exit code
        """Find the servers and examine them."""
        # Imported here, with numpy and the HTTP client, so that --help stays fast.
        from atroposlib.doctor.patients import find_patients
        from atroposlib.doctor.run import run

        flags = passed_flags(self)
        json = bool(flags.pop("json", False))
        return run(find_patients(load_yaml(flags.pop("config", None)), flags), json=json)


_BASES: Any = (
    prefixed(DoctorEnv, "env."),
    prefixed(APIServerConfig, "openai."),
    prefixed(APIServerConfig, "teacher."),
    _Doctor,
)

with warnings.catch_warnings():
    # The option is --json; pydantic's deprecated method of that name is not missed.
    warnings.filterwarnings("ignore", message='Field name "json"')
    DoctorCommand = create_model(
        "DoctorCommand",
        __base__=_BASES,
        __doc__="Examine the teacher and student servers of an environment before a run.",
        json=(bool, Field(False, description="Print the findings as JSON.")),
    )

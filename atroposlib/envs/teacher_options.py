"""The teachers that YAML and command line name: `teacher:` and `teachers:`, each mistake with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from atroposlib.config.merge import build
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import TEACHER_NAME
from atroposlib.config.yaml_file import YamlFile

TeacherName = Annotated[str, Field(pattern=f"^{TEACHER_NAME.pattern}$")]


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid")

    teachers: dict[TeacherName, TeacherConfig] = {}


def named_teachers(namespace: str, yaml: YamlFile, flags: Mapping[str, Any]) -> dict[str, TeacherConfig]:
    """The teachers of the YAML section `namespace` and of `--<namespace>.NAME.<field>`; options win.

    Raises:
        ConfigError: One line a mistake, each naming the flag or the line of the YAML file.
    """
    section = YamlFile(yaml.path, {key: yaml.data[key] for key in [namespace] if key in yaml.data}, yaml.root)
    given = {key: flags[key] for key in [namespace] if key in flags}
    return build(_Named, defaults=None, yaml=section, keys=(), flags=given).teachers

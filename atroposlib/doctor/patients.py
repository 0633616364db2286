"""Which servers the doctor sees: those that an environment with these settings would ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atroposlib.config.doctor import DoctorEnv
from atroposlib.config.merge import build, refuse_unknown_keys
from atroposlib.config.server import APIServerConfig, ServerManagerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import all_teachers
from atroposlib.config.yaml_file import YamlFile
from atroposlib.envs.constants import ENV_NAMESPACE, NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.server_handling.addresses import server_configs
from atroposlib.envs.server_options import check_section, options_in, resolve_students
from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv
from atroposlib.envs.teacher_options import named_teachers
from atroposlib.errors import UsageError

TEACHER = "teacher"
TEACHERS = "teachers"


@dataclass(frozen=True, slots=True)
class Patients:
    """The servers and what a run will ask of them.

    Attributes:
        env: The environment's settings.
        teachers: The teachers by name.
        students: The student's servers.
    """

    env: DoctorEnv
    teachers: dict[str, TeacherConfig]
    students: list[APIServerConfig]


def find_patients(yaml: YamlFile, flags: Mapping[str, Any]) -> Patients:
    """The servers that a file and options name, resolved as an environment resolves them.

    Raises:
        ConfigError: A mistake, with its line or option.
        UsageError: No server is named.
    """
    known = {ENV_NAMESPACE, OPENAI_NAMESPACE, TEACHER, TEACHERS, *ServerManagerConfig.model_fields}
    refuse_unknown_keys(yaml, known)
    prefix = ENV_NAMESPACE + NAMESPACE_SEP
    env = build(DoctorEnv, defaults=None, yaml=yaml, keys=(ENV_NAMESPACE,), flags=flags, prefix=prefix)
    patients = Patients(env, _teachers(yaml, flags), _students(yaml, flags))
    if not patients.teachers and not patients.students:
        raise UsageError(
            "there is no server to examine",
            code="usage.missing_value",
            fix="give --teacher.base_url, --openai.base_url, or --config with a file for an environment",
        )
    return patients


def _teachers(yaml: YamlFile, flags: Mapping[str, Any]) -> dict[str, TeacherConfig]:
    check_section(TEACHER, yaml, flags)
    plain = TeacherDistillationEnv._resolve_teacher_server_configs(None, yaml.data, dict(flags))
    listed = plain if isinstance(plain, list) else [plain]
    servers = [server for server in listed if isinstance(server, APIServerConfig)]
    return all_teachers(servers, named_teachers(TEACHERS, yaml, flags))


def _students(yaml: YamlFile, flags: Mapping[str, Any]) -> list[APIServerConfig]:
    if not (yaml.data.get(OPENAI_NAMESPACE) or options_in(flags, OPENAI_NAMESPACE)):
        return []
    resolved = resolve_students(APIServerConfig(), yaml, flags)
    manager = _manager(yaml, flags)
    return [] if manager.testing else server_configs(resolved, slurm=manager.slurm)


def _manager(yaml: YamlFile, flags: Mapping[str, Any]) -> ServerManagerConfig:
    fields = ServerManagerConfig.model_fields
    section = YamlFile(yaml.path, {key: yaml.data[key] for key in fields if key in yaml.data}, yaml.root)
    given = {key: flags[key] for key in fields if key in flags}
    return build(ServerManagerConfig, defaults=None, yaml=section, keys=(), flags=given)

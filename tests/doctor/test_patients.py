"""Which servers a file and options name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from atroposlib.config.yaml_file import load_yaml
from atroposlib.doctor.command import DoctorCommand
from atroposlib.doctor.patients import Patients, find_patients
from atroposlib.errors import ConfigError, UsageError

CONFIGS = Path(__file__).parents[2] / "environments" / "configs"


def patients(tmp_path: Path, text: str, **flags: Any) -> Patients:
    file = tmp_path / "env.yaml"
    file.write_text(text, encoding="utf-8")
    return find_patients(load_yaml(file), flags)


def urls(found: Patients) -> dict[str, list[str | None]]:
    return {name: [one.base_url for one in config.servers()] for name, config in found.teachers.items()}


def test_an_environments_file_with_settings_of_its_own(tmp_path: Path) -> None:
    found = patients(
        tmp_path,
        "env: {tokenizer_name: org/student, alignment: same_tokenizer, teacher_top_k: 20, "
        "my_own_setting: 1}\n"
        "openai: [{base_url: 'http://s:1'}, {base_url: 'http://s:2'}]\n"
        "teacher: {base_url: 'http://t:1', model_name: big}\n"
        "teachers: {math: {base_url: 'http://m:1', top_k: 5}}\n"
        "slurm: false\n",
    )
    assert found.env.model_dump() == {
        "tokenizer_name": "org/student",
        "alignment": "same_tokenizer",
        "teacher_top_k": 20,
        "max_token_length": None,
    }
    assert urls(found) == {"teacher": ["http://t:1"], "math": ["http://m:1"]}
    assert found.teachers["math"].top_k == 5
    assert [student.base_url for student in found.students] == ["http://s:1", "http://s:2"]


def test_a_list_of_replicas_is_one_teacher(tmp_path: Path) -> None:
    found = patients(tmp_path, "teacher: [{base_url: 'http://t:1'}, {base_url: 'http://t:2'}]\n")
    assert urls(found) == {"teacher": ["http://t:1", "http://t:2"]}
    assert found.students == []


def test_options_win_over_the_file(tmp_path: Path) -> None:
    flags = {"teacher.model_name": "small", "env.teacher_top_k": 3}
    text = "env: {teacher_top_k: 20}\nteacher: {base_url: 'http://t:1', model_name: big}\n"
    found = patients(tmp_path, text, **flags)
    assert [one.model_name for one in found.teachers["teacher"].servers()] == ["small"]
    assert found.env.teacher_top_k == 3


def test_testing_starts_no_students(tmp_path: Path) -> None:
    text = "openai: {base_url: 'http://s:1'}\nteacher: {base_url: 'http://t:1'}\ntesting: true\n"
    assert patients(tmp_path, text).students == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env: {teacher_top_k: many}\nteacher: {base_url: 'http://t:1'}\n", "env.yaml:1 env.teacher_top_k"),
        ("teacher:\n  base_url: http://t:1\n  modelname: x\n", "env.yaml:3 teacher.modelname"),
        ("teachers:\n  math:\n    weigth: 1\n", "env.yaml:3 teachers.math.weigth"),
        ("teachers:\n  math:\n    weight: 1\n", "teachers.math: a teacher's server has no address"),
        ("teachr: {}\n", "env.yaml:1 teachr"),
    ],
)
def test_mistakes_name_their_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        patients(tmp_path, text)


def test_no_server_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server to examine"):
        patients(tmp_path, "env: {teacher_top_k: 3}\n")


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_file_of_the_repository_can_be_examined(file: Path) -> None:
    found = find_patients(load_yaml(file), {})
    assert found.env.tokenizer_name
    assert found.students


def test_the_option_is_called_json() -> None:
    assert "json" in DoctorCommand.model_fields

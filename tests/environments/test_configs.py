"""Every YAML file loads, explains every key, and names only options that exist."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml

from atroposlib.config.yaml_file import load_yaml
from atroposlib.envs.commands import build_env
from tests.support.tiny import write_tokenizer

CONFIGS = sorted((Path(__file__).parents[2] / "environments" / "configs").glob("*.yaml"))
ENVIRONMENTS = {
    "arithmetic_distill": ("arithmetic_distill", "ArithmeticDistillEnv"),
    "gsm8k": ("gsm8k_server", "GSM8kEnv"),
    "gsm8k_teacher_distill": ("gsm8k_server_teacher_distill", "GSM8kTeacherDistillEnv"),
}


def test_every_file_has_its_environment() -> None:
    assert {path.stem for path in CONFIGS} == set(ENVIRONMENTS)


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> str:
    write_tokenizer(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_file_builds_its_environment(path: Path, tokenizer_dir: str) -> None:
    module, name = ENVIRONMENTS[path.stem]
    env_cls: Any = getattr(importlib.import_module(module), name)
    flags: dict[str, Any] = {"testing": True, "env.tokenizer_name": tokenizer_dir}
    if "teacher" in path.stem or "distill" in path.stem:
        flags["teacher.tokenizer_name"] = tokenizer_dir
    env = build_env(env_cls, "serve", load_yaml(path), flags)
    written = pyyaml.safe_load(path.read_text())
    for key, value in written["env"].items():
        if key not in ("tokenizer_name",):
            assert getattr(env.config, key) == value
    assert getattr(env.config, "teacher_enabled", False) is ("teacher" in written)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_key_has_a_comment_above_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    keys = [index for index, line in enumerate(lines) if line.startswith("  ") and line.strip()[0] != "#"]
    assert keys
    assert [lines[index] for index in keys if not lines[index - 1].strip().startswith("#")] == []

"""serve, process and evaluate: what command line and YAML make of an environment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml

from atroposlib.config.runner import run
from atroposlib.config.yaml_file import YamlFile, load_yaml
from atroposlib.envs import commands
from atroposlib.envs.commands import build_env, command_class
from tests.envs.toy_environment import ScriptEnv

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Parses a command line and gives the environment it would run, or the exit code of a refusal."""

    def parse(name: str, *argv: str) -> Any:
        made: list[Any] = []

        def start(env_cls: Any, name: str, yaml: YamlFile, flags: dict[str, Any]) -> int:
            made.append(build_env(env_cls, name, yaml, flags))
            return 0

        monkeypatch.setattr(commands, "start", start)
        arguments = [name, "--testing", "--env.tokenizer_name", str(tokenizer_dir), *argv]
        code = run({name: command_class(ScriptEnv, name)}, arguments, "script.py")
        return made[0] if code == 0 else code

    return parse


def teacher_flags(tokenizer_dir: Path) -> list[str]:
    return ["--teacher.base_url", "http://t", "--teacher.tokenizer_name", str(tokenizer_dir)]


@pytest.mark.parametrize("name", ["serve", "process", "evaluate"])
def test_teacher_options_work_for_every_command(
    command: Callable[..., Any], tokenizer_dir: Path, name: str
) -> None:
    env = command(name, *teacher_flags(tokenizer_dir), "--env.teacher_top_k", "20")
    assert env.config.teacher_enabled
    assert env.config.teacher_top_k == 20
    assert [server.config.base_url for server in env.teacher_server.servers] == ["http://t"]
    assert not env.config.ensure_scores_are_not_same


@pytest.mark.parametrize("name", ["serve", "process", "evaluate"])
def test_named_teachers_are_given_by_options_and_yaml(
    command: Callable[..., Any], tokenizer_dir: Path, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"teachers:\n  math: {{base_url: http://yaml, weight: 2, tokenizer_name: {tokenizer_dir}}}\n"
        f"  code:\n    tokenizer_name: {tokenizer_dir}\n"
        "    replicas: [{base_url: http://a, api_key: sk-one}, {base_url: http://b}]\n"
    )
    options = ["--teachers.math.base_url", "http://math", "--teachers.code.top-k=-1"]
    env = command(name, "--config", str(file), *options, *teacher_flags(tokenizer_dir))
    assert env.config.teacher_enabled
    assert list(env.teachers) == ["teacher", "math", "code"]
    roots = {key: [one.peer.root for one in teacher.replicas] for key, teacher in env.teachers.items()}
    assert roots == {"teacher": ["http://t"], "math": ["http://math"], "code": ["http://a", "http://b"]}
    settings = env._teacher_set.configs
    assert (settings["math"].weight, settings["code"].top_k) == (2.0, -1)
    assert "sk-one" not in repr(settings)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--teachers.math.modelname", "did you mean --teachers.math.model_name"),
        ("--teachers.math.weight=-1", "--teachers.math.weight: "),
        ("--teachers.math.model_name=m", "set teachers.math.base_url"),
        ("--teachers.teacher.base_url=http://b", "two teachers have one name"),
    ],
)
def test_mistake_in_a_named_teacher_is_one_line(
    command: Callable[..., Any],
    tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    told: str,
) -> None:
    assert command("serve", *teacher_flags(tokenizer_dir), option) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert told in lines[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--teachers.math.model_name=m"], "teachers.math: a teacher's server has no address"),
        (
            ["--teachers.math.base_url=http://a", "--teachers.math.tokenizer_name=/nowhere"],
            "teachers.math.tok",
        ),
        (
            ["--teachers.math.base_url=http://a", "--teachers.math.chat_template=/nowhere"],
            "teachers.math.chat",
        ),
        (["--teacher.base_url=http://a", "--teacher.tokenizer_name=/nowhere"], "teacher.tokenizer_name: "),
        (["--teacher.base_url=http://a", "--env.teacher_top_k=200", "--env.student_top_k=56"], "at most 256"),
        (["--teacher.base_url=http://a", "--env.teacher_top_k=256"], "--env.teacher_top_k: "),
        (["--teachers.math.base_url=http://a", "--teachers.math.api_key=a\nb"], "--teachers.math.api_key: "),
    ],
)
def test_mistake_is_told_with_its_place_before_the_run(
    command: Callable[..., Any],
    tokenizer_dir: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    told: str,
) -> None:
    name = options[0].partition("=")[0].rpartition(".")[0]
    if not any("tokenizer_name" in option for option in options):
        options = [*options, f"{name}.tokenizer_name={tokenizer_dir}"]
    assert command("serve", *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert "a\\nb" not in line


def test_top_k_of_minus_one_is_minus_one(command: Callable[..., Any], tokenizer_dir: Path) -> None:
    env = command("serve", *teacher_flags(tokenizer_dir), "--env.teacher_top_k", "-1")
    assert env.config.teacher_top_k == -1


def test_teacher_turned_off_stays_off(command: Callable[..., Any], tokenizer_dir: Path) -> None:
    env = command("serve", *teacher_flags(tokenizer_dir), "--env.teacher_enabled", "false")
    assert not env.config.teacher_enabled
    assert env.teacher_server is None


def test_equal_scores_filter_stays_when_it_is_asked_for(
    command: Callable[..., Any], tokenizer_dir: Path
) -> None:
    env = command("serve", *teacher_flags(tokenizer_dir), "--env.ensure_scores_are_not_same")
    assert env.config.ensure_scores_are_not_same


def test_command_line_wins_over_yaml_and_yaml_over_defaults(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("env: {group_size: 5, total_steps: 7, use_wandb: false}\nopenai: {model_name: yaml}\n")
    env = command("serve", "--config", str(file), "--env.group_size", "6")
    config = env.config
    assert (config.group_size, config.total_steps, config.use_wandb) == (6, 7, False)


def test_enabled_without_a_teacher_is_one_line_and_exit_2(
    command: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("serve", "--env.teacher_enabled") == 2
    told = capsys.readouterr().err
    assert "no teacher server configuration was provided" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("env: {teacher_topk: 3}", ["run.yaml:1", "env.teacher_topk", "teacher_top_k"]),
        ("teacher: {modelname: x}", ["run.yaml:1", "teacher.modelname", "model_name"]),
        ("openai:\n  - {base_url: http://a}\n  - {timeout: soon}", ["run.yaml:3", "timeout"]),
        ("teachrs: {}", ["run.yaml:1", "teachrs", "teachers"]),
        ("teachers:\n  math:\n    wieght: 2", ["run.yaml:3", "teachers.math.wieght", "weight"]),
        (
            "teachers:\n  math:\n    weight: -1",
            ["run.yaml:3", "teachers.math.weight", "greater than or equal"],
        ),
        ("teachers:\n  math:\n    replicas:\n      - {modl: 2}", ["run.yaml:4", "replicas.0.modl"]),
        ("teachers:\n  a b: {}", ["run.yaml:2", "teachers.a b"]),
        ("teachers:\n  math: 5", ["run.yaml:2", "teachers.math"]),
        ("teachers: []", ["run.yaml:1", "teachers"]),
        ("openai: http://a", ["run.yaml:1", "openai"]),
        ("env: [", ["run.yaml"]),
    ],
)
def test_mistake_in_yaml_names_file_line_and_key(
    command: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    told: list[str],
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert command("serve", "--config", str(file)) == 2
    line = capsys.readouterr().err
    assert all(part in line for part in told), line
    assert "Traceback" not in line


def test_missing_file_and_unknown_option_exit_2(
    command: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("serve", "--config", "nowhere.yaml") == 2
    assert command("serve", "--env.group_sizes", "4") == 2
    assert "group_size" in capsys.readouterr().err


def test_option_beside_several_servers_exits_2(command: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("openai: [{base_url: http://a}, {base_url: http://b}]")
    assert command("serve", "--config", str(file), "--openai.timeout", "3") == 2


def test_process_keeps_every_group_and_names_a_file(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = command("process", "--env.total_steps", "9")
    assert (env.config.ensure_scores_are_not_same, env.config.include_messages) == (False, True)
    assert env.config.data_path_to_save_groups == "data/script.jsonl"
    assert (env.process_mode, env.n_groups_to_process, env.group_size_to_process) == (True, 9, 2)


@pytest.mark.parametrize("name", ["process", "evaluate"])
def test_only_serve_logs_to_wandb_unless_told_to(command: Callable[..., Any], name: str) -> None:
    assert command("serve").config.use_wandb
    assert not command(name).config.use_wandb
    assert command(name, "--env.use_wandb", "true").config.use_wandb


def test_process_writes_groups_with_messages(tokenizer_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    flags: dict[str, Any] = {
        "testing": True,
        "env.tokenizer_name": str(tokenizer_dir),
        "env.total_steps": 3,
        "env.data_path_to_save_groups": str(file),
    }
    assert commands.start(ScriptEnv, "process", load_yaml(None), flags) == 0
    groups = [json.loads(line) for line in file.read_text().splitlines()]
    assert [group["tokens"][0][0] for group in groups] == [0, 1, 2]
    assert groups[0]["messages"][0][0]["role"] == "assistant"
    assert file.with_suffix(".html").read_text().count("<details") == 3


def test_evaluate_writes_metrics_and_its_settings_without_keys(tokenizer_dir: Path, tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "env.tokenizer_name": str(tokenizer_dir),
        "env.data_dir_to_save_evals": str(tmp_path / "evals"),
    }
    assert commands.start(ScriptEnv, "evaluate", load_yaml(None), flags) == 0
    assert json.loads((tmp_path / "evals/metrics.json").read_text())["results"]["all"] == {"accuracy": 0.25}
    text = (tmp_path / "evals/evaluate_config.yaml").read_text()
    assert "sk-secret" not in text
    assert pyyaml.safe_load(text)["openai"][0]["model_name"] == "student"
    assert pyyaml.safe_load(text)["env"]["group_size"] == 2


def test_teacher_that_does_not_answer_is_one_line_and_exit_3() -> None:
    teacher = ["--teacher.base_url", "http://127.0.0.1:9/v1", "--teacher.tokenizer_name", "bytes"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.envs.toy_environment", "serve", "--env.use_wandb", "false", *teacher],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "teacher.unreachable" in last
    assert "127.0.0.1:9" in last
    assert "Traceback" not in done.stderr

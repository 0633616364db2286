from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import Field

from atroposlib.config.runner import Cmd, passed_flags, run, run_and_exit, run_settings
from atroposlib.utils.cli import get_double_dash_flags
from tests.config.examples import SEEN, Required, Serve, Settings

RECORD = "tests.config.examples:record"


@pytest.fixture(autouse=True)
def _nothing_seen_yet() -> Iterator[None]:
    SEEN.clear()
    yield
    SEEN.clear()


class Number(Cmd):
    """Return the number as exit code."""

    number: int = Field(..., description="Exit code.")

    def run(self) -> int | None:  # type: ignore[override]  # our runner also takes an exit code
        SEEN.append(get_double_dash_flags())
        return self.number


def test_a_command_gets_its_options_and_its_exit_code_is_returned() -> None:
    assert run(Number, ["--number", "7"]) == 7
    assert run({"number": Number, "serve": Serve}, ["number", "--number=0"]) == 0
    assert run(Serve, []) == 0


def test_run_and_exit_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["env.py", "--number", "5"])
    with pytest.raises(SystemExit) as end:
        run_and_exit(Number)
    assert end.value.code == 5


def test_passed_flags_are_those_typed_with_their_parsed_values() -> None:
    argv = ["--env.teacher-top-k", "-1", "--slurm", "--no-env.use_wandb", "--openai.base_url", "None"]
    assert run(Serve, argv) == 0
    assert passed_flags(SEEN[0]) == {
        "env.teacher_top_k": -1,
        "slurm": True,
        "env.use_wandb": False,
        "openai.base_url": None,
    }


def test_atropos_flag_helper_gives_the_same_while_a_command_runs() -> None:
    run(Number, ["--number=-1"])
    assert SEEN == [{"number": -1}]


def test_a_missing_required_option_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Number, []) == 2
    assert capsys.readouterr().err == "--number: a value is required (expected INT) [usage.missing_value]\n"


def test_several_mistakes_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--env.teacher_topk", "3", "--slrum", "--env.teacher_top_k", "-2", "--openai.server_type", "tgi"]
    assert run(Serve, argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "--env.teacher_topk",
        "--slrum",
        "--openai.server_type",
        "--env.teacher_top_k",
    ]


def test_a_mistyped_required_option_is_one_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_settings(Required, RECORD, ["--modle", "m"], "atropos x") == 2
    assert capsys.readouterr().err == (
        "--modle: unknown option; did you mean --model? [usage.unknown_option]\n"
    )


def test_the_command_is_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {"serve": Serve, "process": Number}
    assert run(commands, ["srve"], "env.py") == 2
    assert run(commands, [], "env.py") == 2
    assert run(commands, ["--help"], "env.py") == 0
    out, err = capsys.readouterr()
    first, *rest = err.splitlines()
    assert first == (
        "srve: no such command (expected one of serve, process); did you mean serve? [usage.unknown_option]"
    )
    assert "\n".join(rest) == out.strip()
    assert "  serve    Serve an environment.\n" in out


def test_help_of_a_command_shows_type_default_and_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert run({"serve": Serve}, ["serve", "--help"], "env.py") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: env.py serve [--option VALUE ...] Serve an environment. options:")
    assert "--env.group_size INT Rollouts in a group. (default: 4)" in text
    assert "--env.teacher_top_k INT >= -1 <= 255 Top-k tokens asked of the teacher" in text
    assert "not for the summary" not in text


def test_help_never_shows_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_settings(Settings, RECORD, ["--help"], "atropos x") == 0
    assert "hidden-default" not in capsys.readouterr().out


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        run(Serve, ["--help"])
        width = min(int(columns), 120)
        # A single word that is longer than its column cannot be broken.
        assert all(
            len(line) <= width or len(line.split()) <= 2 for line in capsys.readouterr().out.splitlines()
        )


def test_settings_come_from_the_file_and_the_options(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("count: 2\nrate: 1e-3\ninner: {weight: 2}\n")
    argv = ["--config", str(path), "--count=1", "--inner.name", "reverse"]
    assert run_settings(Settings, RECORD, argv, "atropos x") == 0
    (settings,) = SEEN
    assert (settings.count, settings.rate) == (1, 0.001)
    assert settings.inner.model_dump() == {"name": "reverse", "weight": 2.0}
    assert settings.model_fields_set == {"count", "rate", "inner"}


def test_a_wrong_file_is_one_line_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("steps: 1\nmodle: x\n")
    assert run_settings(Required, RECORD, ["--config", str(path), "--setps=3"], "atropos x") == 2
    assert run_settings(Required, RECORD, ["--config", str(tmp_path / "no.yaml")], "atropos x") == 2
    assert capsys.readouterr().err.replace(f"{tmp_path}/", "").splitlines() == [
        "--setps: unknown option; did you mean --steps? [usage.unknown_option]",
        "x.yaml:2 modle: unknown option; did you mean model? [usage.unknown_option]",
        "no.yaml: no such file [usage.file]",
    ]
    assert SEEN == []


def test_a_wrong_option_is_found_before_the_command_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_settings(Required, "no.such.module:run", ["--model"], "atropos x") == 2
    assert capsys.readouterr().err.startswith("--model: a value is missing")

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import BaseModel

from atroposlib.cli.commands import COMMANDS, LISTINGS
from atroposlib.cli.main import main
from atroposlib.config.options import options_of
from atroposlib.config.runner import Cmd, load_name
from atroposlib.errors import CODES

Output = pytest.CaptureFixture[str]


def test_version_is_that_of_the_package(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"atropos {version('atroposlib')}\n"


@pytest.mark.parametrize(("argv", "code"), [(["--help"], 0), (["-h"], 0), ([], 2)])
def test_the_overview_names_every_command(argv: list[str], code: int, capsys: Output) -> None:
    assert main(argv) == code
    streams = capsys.readouterr()
    shown, silent = (streams.err, streams.out) if code else (streams.out, streams.err)
    listed = [line.strip() for line in shown.splitlines() if line.startswith("  ") and line[2] != " "]
    assert [re.split("  +", line)[0] for line in listed] == [
        *COMMANDS,
        *LISTINGS,
    ]
    assert silent == ""


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["tarin"], "tarin: no such command (expected one of "),
        (["--verison"], "--verison: no such command"),
        (["train", "--modl", "x"], "--modl: unknown option; did you mean --model? [usage.unknown_option]\n"),
        (["options", "trian"], "trian: no such command"),
        (
            ["projection", "bild"],
            "bild: no such command (expected one of build, inspect); did you mean build?",
        ),
        (["errors", "all"], "atropos errors: errors takes no option (got all)"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(argv: list[str], line: str, capsys: Output) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(line)
    assert len(err.splitlines()) == 1


def test_errors_lists_every_code(capsys: Output) -> None:
    assert main(["errors"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == set(CODES)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_lists_every_option_of_a_command(name: str, capsys: Output) -> None:
    assert main(["options", *name.split()]) == 0
    words = capsys.readouterr().out.split()
    settings: type[BaseModel] = load_name(COMMANDS[name].settings)
    assert {f"--{option}" for option in options_of(settings)} <= set(words)
    assert "--config" in words


def test_a_word_that_two_commands_share_lists_them(capsys: Output) -> None:
    assert main(["projection"]) == 2
    assert main(["projection", "--help"]) == 0
    streams = capsys.readouterr()
    assert streams.out == streams.err
    assert "\n  build " in streams.out
    assert "\n  inspect " in streams.out
    assert main(["options", "projection"]) == 0
    both = capsys.readouterr().out
    assert main(["options", "projection", "inspect", "train"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in both.splitlines() if line.startswith("atropos")] == [
        f"atropos {name}: {COMMANDS[name].summary}" for name in ("projection build", "projection inspect")
    ]
    assert shown.startswith("atropos projection inspect: ")
    assert "\natropos train: " in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists(name: str) -> None:
    command = COMMANDS[name]
    if command.target is None:
        assert issubclass(load_name(command.settings), Cmd)
        return
    assert issubclass(load_name(command.settings), BaseModel)
    module, _, function = command.target.partition(":")
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    assert f"def {function}(" in Path(found.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name: str) -> None:
    options = options_of(load_name(COMMANDS[name].settings))
    assert [option.name for option in options.values() if not option.field.description] == []


def test_the_module_runs_like_the_script() -> None:
    argv = [sys.executable, "-W", "error", "-m", "atroposlib.cli.main", "train", "--modl", "x"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "--modl: unknown option; did you mean --model? [usage.unknown_option]\n"


def test_a_list_cut_off_by_its_reader_is_silent() -> None:
    command = [sys.executable, "-m", "atroposlib.cli.main", "errors"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""


HEAVY = ("torch", "transformers", "fastapi", "aiohttp", "vllm", "accelerate", "gguf")


@pytest.mark.parametrize("argv", [[], ["projection"], *(name.split() for name in (*COMMANDS, *LISTINGS))])
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    code = f"""
import sys
from atroposlib.cli.main import main
assert main([*{argv!r}, "--help"]) == 0
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert done.stdout.startswith("usage: atropos")


ENVIRONMENTS = sorted((Path(__file__).parents[2] / "environments").glob("*.py"))


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_help_of_an_environment_imports_no_model_library(path: Path) -> None:
    code = f"""
import runpy, sys
sys.argv = [{str(path)!r}, "serve", "--help"]
sys.path[0] = {str(path.parent)!r}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    assert end.code == 0, end.code
print([name for name in ("torch", "transformers", "datasets") if name in sys.modules], file=sys.stderr)
"""
    argv = [sys.executable, "-c", code]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "--env.group_size INT" in done.stdout

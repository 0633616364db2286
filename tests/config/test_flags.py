from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from atroposlib.config.exits import lines_of
from atroposlib.config.flags import parse
from atroposlib.config.merge import build
from atroposlib.config.mistakes import Mistakes
from atroposlib.config.options import options_of
from atroposlib.config.yaml_file import YamlFile
from atroposlib.errors import ConfigError
from tests.config.examples import Serve, Settings


def _read(*argv: str) -> dict[str, Any]:
    """Values of the fields that the arguments set."""
    parsed = parse(argv, options_of(Settings))
    assert [str(mistake) for mistake in parsed.mistakes] == []
    settings = build(Settings, defaults=None, yaml=YamlFile(), keys=(), flags=parsed.values)
    return {name: getattr(settings, name) for name in settings.model_fields_set}


def _mistakes(*argv: str, of: type[BaseModel] = Settings) -> list[str]:
    return [str(mistake) for mistake in parse(argv, options_of(of)).mistakes]


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--count", "-1"], "count", -1),
        (["--count=-1"], "count", -1),
        (["--rate", "-0.5"], "rate", -0.5),
        (["--rate", "-1e-3"], "rate", -1e-3),
        (["--rate", "-.5"], "rate", -0.5),
        (["--name="], "name", ""),
        (["--name", "a=b"], "name", "a=b"),
        (["--name=-x"], "name", "-x"),
        (["--name", "None"], "name", "None"),
        (["--note", "None"], "note", None),
        (["--note=null"], "note", None),
        (["--note", "none"], "note", "none"),
        (["--wanted"], "wanted", True),
        (["--no-wanted"], "wanted", False),
        (["--wanted", "false"], "wanted", False),
        (["--wanted=true"], "wanted", True),
        (["--maybe", "None"], "maybe", None),
        (["--no-maybe"], "maybe", False),
        (["--colour", "green"], "colour", "green"),
        (["--effort", "high"], "effort", "high"),
        (["--stops", "a", "--stops", "b"], "stops", ["a", "b"]),
        (["--stops", "a", "b"], "stops", ["a", "b"]),
        (["--stops", '["a", "b"]', "--stops", "c"], "stops", ["a", "b", "c"]),
        (["--stops", "[INST]"], "stops", ["[INST]"]),
        (["--stops", "None"], "stops", ["None"]),
        (["--limits", "None"], "limits", None),
        (["--limits", "-1e-3", "2"], "limits", [-1e-3, 2.0]),
        (["--stops", "[]"], "stops", []),
        (["--sizes", "-1", "2"], "sizes", [-1, 2]),
        (["--sizes", "[1, -2]"], "sizes", [1, -2]),
        (["--betas", "0.8", "0.9"], "betas", (0.8, 0.9)),
        (["--betas", "[0.8, 0.9]"], "betas", (0.8, 0.9)),
        (["--extra", '{"a": [1, null]}'], "extra", {"a": [1, None]}),
        (["--one_or_many", "a"], "one_or_many", "a"),
        (["--one-or-many", '["a"]'], "one_or_many", ["a"]),
        (["--one_or_many", "5"], "one_or_many", "5"),
        (["--number_or_text", "5"], "number_or_text", 5),
        (["--number_or_text", "five"], "number_or_text", "five"),
        (["--count", "1", "--count", "2"], "count", 2),
    ],
)
def test_every_spelling_of_a_value_is_read_as_meant(argv: list[str], field: str, value: object) -> None:
    assert _read(*argv) == {field: value}


def test_options_of_a_nested_model_set_only_their_fields() -> None:
    inner = _read("--inner.weight", "2", "--inner.name=reverse")["inner"]
    assert inner.model_dump() == {"name": "reverse", "weight": 2.0}
    assert _read("--inner.weight", "2")["inner"].model_fields_set == {"weight"}


def test_a_list_of_models_is_given_as_json() -> None:
    parts = _read("--parts", '{"weight": 2}', "--parts", '[{"name": "reverse"}]')["parts"]
    assert [part.model_dump(exclude_unset=True) for part in parts] == [{"weight": 2.0}, {"name": "reverse"}]


@given(st.integers(min_value=-1, max_value=10), st.floats(allow_nan=False), st.lists(st.integers()))
def test_numbers_come_through_unchanged(count: int, rate: float, sizes: list[int]) -> None:
    argv = ["--count", str(count), "--rate", repr(rate), "--sizes", json.dumps(sizes)]
    assert _read(*argv) == {"count": count, "rate": rate, "sizes": sizes}


@given(st.text(min_size=1))
def test_any_text_comes_through_after_an_equals_sign(text: str) -> None:
    parsed = parse([f"--name={text}"], options_of(Settings))
    assert (parsed.values, parsed.mistakes) == ({"name": text}, [])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--cuont", "3"], "--cuont: unknown option; did you mean --count? [usage.unknown_option]"),
        (["--cou", "3"], "--cou: unknown option; did you mean --count? [usage.unknown_option]"),
        (["-count", "3"], "-count: unknown option; did you mean --count? [usage.unknown_option]"),
        (["--no-wnted"], "--no-wnted: unknown option; did you mean --no-wanted? [usage.unknown_option]"),
        (["--no-count"], "--no-count: unknown option; did you mean --count? [usage.unknown_option]"),
        (["--weight", "2"], "--weight: unknown option; did you mean --inner.weight? [usage.unknown_option]"),
        (
            ["--qqqqqqqq", "1", "2"],
            "--qqqqqqqq: unknown option; --help lists the options [usage.unknown_option]",
        ),
        (
            ["count=3"],
            "command line: no option takes this word (got 'count=3'); did you mean --count? "
            "[usage.unknown_option]",
        ),
        (
            ["--count", "3", "4"],
            "command line: no option takes this word (got '4'); options begin with -- [usage.unknown_option]",
        ),
        (
            ["--count", "--rate=1"],
            "--count: a value is missing (expected INT >= -1 <= 10); a value that begins with -- is written "
            "--count=VALUE [usage.missing_value]",
        ),
        (
            ["--no-wanted=true"],
            "--no-wanted: the option takes no value; write --wanted VALUE [config.invalid]",
        ),
        (["--extra", "{a: 1}"], "--extra: not JSON: Expecting property name enclosed in double quotes"),
        (["--sizes", "[1, 2"], "--sizes: not JSON: Expecting ',' delimiter at character 6"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(argv: list[str], said: str) -> None:
    (line,) = _mistakes(*argv)
    assert line.startswith(said)


def test_all_mistakes_are_told_in_one_run() -> None:
    lines = _mistakes("--cuont", "3", "--name", "x", "y", "--rate", "--wante")
    assert [line.partition(":")[0] for line in lines] == ["--cuont", "command line", "--rate", "--wante"]


def test_a_word_after_a_secret_is_not_repeated() -> None:
    lines = _mistakes("--key", "s3cret", "s3cret-2", "-s3cret-3")
    assert len(lines) == 2
    assert not any("s3cret" in line for line in lines)


def _typo(name: str, chance: random.Random) -> str:
    """The name with one character inserted, deleted or replaced, or two neighbours swapped."""
    place = chance.randrange(len(name))
    letter = chance.choice("abcdefghijklmnopqrstuvwxyz0123456789_.-")
    edits = [
        name[:place] + letter + name[place:],
        name[:place] + name[place + 1 :],
        name[:place] + letter + name[place + 1 :],
        name[:place] + name[place + 1 : place + 2] + name[place] + name[place + 2 :],
    ]
    return chance.choice(edits)


def test_every_one_edit_typo_of_200_is_recalled() -> None:
    chance = random.Random(20)
    options = options_of(Serve)
    spellings = {name.replace("-", "_") for name in options}
    tried = 0
    while tried < 200:
        meant = chance.choice(list(options))
        typed = _typo(meant, chance)
        if typed.replace("-", "_") in spellings:
            continue
        tried += 1
        (mistake,) = parse([f"--{typed}", "1"], options).mistakes
        assert mistake.fix is not None
        assert f"--{meant}" in mistake.fix.rstrip("?").split(), (typed, meant, mistake.fix)


def test_help_is_seen_wherever_it_stands() -> None:
    options = options_of(Settings)
    assert parse(["--count", "3", "-h"], options).help
    assert parse(["--help", "--nonsense"], options).help
    assert not parse(["--name=--help"], options).help


WORDS = [
    "--",
    "-",
    "--no-",
    "=",
    "count",
    "rate",
    "inner.weight",
    "inner",
    "stops",
    "extra",
    "wanted",
    "key",
    "3",
]
WORDS += [
    "[1",
    "{",
    "}",
    "null",
    ".",
    "-1e-3",
    "é",
    " ",
    "\n",
    "parts",
    "one_or_many",
    "number_or_text",
    "betas",
]


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=4).map("".join), max_size=6))
def test_any_words_are_read_or_refused_in_one_line_each(argv: list[str]) -> None:
    parsed = parse(argv, options_of(Settings))
    try:
        build(Settings, defaults=None, yaml=YamlFile(), keys=(), flags=parsed.values)
        mistakes = parsed.mistakes
    except Mistakes as several:
        mistakes = [*parsed.mistakes, *several.errors]
    except ConfigError as single:
        mistakes = [*parsed.mistakes, single]
    assert all("\n" not in line for mistake in mistakes for line in lines_of(mistake))

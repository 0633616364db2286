from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.config.yaml_file import YamlFile, load_yaml
from atroposlib.errors import UsageError

TEXT = """\
base: &base
  group_size: 4      # line 2
  use_wandb: false
env:
  <<: *base
  group_size: 8      # line 6
teacher:
  - base_url: http://a
    model_name: a
  - base_url: http://b   # line 10
flow: {a: 1, b: [x, y]}
12: number
rate: 1.5
when: 2026-01-02
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_data_is_what_safe_load_gives(tmp_path: Path) -> None:
    assert load_yaml(_write(tmp_path, TEXT)).data == yaml.safe_load(TEXT)


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("env",), 4),
        (("env", "group_size"), 6),
        (("env", "use_wandb"), 3),
        (("env", "absent"), 4),
        (("absent",), None),
        (("teacher", 1, "base_url"), 10),
        (("teacher", 1), 10),
        (("teacher", 7), 7),
        (("flow", "b", 1), 11),
        ((12,), 12),
        ((), None),
    ],
)
def test_line_is_that_of_the_value_or_of_what_stands_around_it(
    tmp_path: Path, keys: tuple[str | int, ...], line: int | None
) -> None:
    assert load_yaml(_write(tmp_path, TEXT)).line(*keys) == line


def test_where_names_file_line_and_path(tmp_path: Path) -> None:
    path = _write(tmp_path, TEXT)
    assert load_yaml(path).where("teacher", 1, "base_url") == f"{path}:10 teacher.1.base_url"
    assert load_yaml(path).where() == str(path)
    assert YamlFile().where("env", "group_size") == "env.group_size"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n"])
def test_no_file_and_an_empty_file_are_an_empty_mapping(tmp_path: Path, text: str) -> None:
    assert load_yaml(None).data == {}
    assert load_yaml(_write(tmp_path, text)).data == {}


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("a: 1\nb: [1, 2\n", ":3:1", "flow sequence"),
        ("a: 1\n\tb: 2\n", ":2:1", "cannot start any token"),
        ("a: 1\na: 2\n", ":2", "given twice"),
        ("env:\n  a: 1\n  b: 2\n  a: 3\n", ":4", "given twice"),
        ("env: {a: 1, a: 2}\n", ":1", "given twice"),
        ("a: !!python/object/apply:os.system [ls]\n", ":1:4", "constructor"),
        ("a: *nowhere\n", ":1:4", "undefined alias"),
        ("- a\n- b\n", "", "must be a mapping"),
        ("just words\n", "", "must be a mapping"),
        ("a: 1\n---\nb: 2\n", ":2:1", "another document"),
        ("a: 1\nb: 2026-13-45\n", ":2:4", "not a valid timestamp: '2026-13-45'"),
        ("a: [1, !!bool maybe]\n", ":1:8", "not a valid bool"),
        ("a: !!int ''\n", ":1:4", "not a valid int"),
        ("[" * 5000, "", "nested too deeply"),
        ("a: \x01\n", "", "special characters"),
    ],
)
def test_what_is_no_settings_file_is_refused_with_its_place(
    tmp_path: Path, text: str, place: str, said: str
) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(UsageError, match=said) as caught:
        load_yaml(path)
    assert caught.value.code == "usage.yaml"
    assert caught.value.where == f"{path}{place}"
    assert "\n" not in str(caught.value)


def test_a_key_overridden_after_a_merge_is_no_duplicate(tmp_path: Path) -> None:
    assert load_yaml(_write(tmp_path, TEXT)).data["env"] == {"group_size": 8, "use_wandb": False}


def test_aliases_upon_aliases_are_walked_once_each(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    assert len(load_yaml(_write(tmp_path, "\n".join(lines))).data) == 60


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_yaml(tmp_path / name)
    assert caught.value.code == "usage.file"
    assert caught.value.where == str(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(UsageError, match="UTF-8"):
        load_yaml(path)


FRAGMENTS = [
    "a",
    "b",
    ": ",
    "- ",
    "\n",
    "  ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&x ",
    "*x",
    "<<",
    "!!int ",
    "!!set ",
    "?",
    "'",
    '"',
]
FRAGMENTS += ["1", "2026-01-", "0x_", "|", ">", "#", "%", "\t", "---", "é", "~", "=", "!!binary ", "!t "]


def _data_or_error(path: Path) -> tuple[object, str | None]:
    try:
        return load_yaml(path).data, None
    except UsageError as error:
        return None, str(error)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, error = _data_or_error(_write(Path(folder), text))
    if error is None:
        assert data == (yaml.safe_load(text) or {})
    else:
        assert error.endswith("[usage.yaml]")
        assert "\n" not in error

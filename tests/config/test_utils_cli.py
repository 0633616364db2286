from __future__ import annotations

import sys
from typing import Any

import pytest
from pydantic import ValidationError

from atroposlib.config.env import TeacherDistillationConfig
from atroposlib.utils.cli import (
    adjust_model_defaults,
    extract_namespace,
    get_double_dash_flags,
    get_prefixed_pydantic_model,
    merge_dicts,
)


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        (["serve", "--env.teacher_top_k", "-1"], {"env.teacher_top_k": "-1"}),
        (["--env.teacher_top_k=-1", "--slurm"], {"env.teacher_top_k": "-1", "slurm": True}),
        (["--slurm", "--env.name", "None", "--a="], {"slurm": True, "env.name": None, "a": ""}),
        (["--a", "x=y", "z", "--b=c=d"], {"a": "x=y", "b": "c=d"}),
        (["process", "-v", "--", "--=x"], {}),
    ],
)
def test_flags_are_read_from_the_words_of_the_process(
    argv: list[str], flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["env.py", *argv])
    assert get_double_dash_flags() == flags


def test_merge_dicts_merges_mappings_and_leaves_its_arguments_alone() -> None:
    low: dict[str, Any] = {"a": {"x": 1, "y": {"z": 1}}, "b": 1}
    assert merge_dicts(low, {"a": {"y": {"w": 2}}, "b": {"c": 3}}, {"b": None}) == {
        "a": {"x": 1, "y": {"z": 1, "w": 2}},
        "b": None,
    }
    assert low == {"a": {"x": 1, "y": {"z": 1}}, "b": 1}
    assert merge_dicts() == {}


def test_extract_namespace_takes_models_and_mappings() -> None:
    flags = get_prefixed_pydantic_model(TeacherDistillationConfig, "env.")
    assert extract_namespace(flags(), "env.") == TeacherDistillationConfig().model_dump()
    assert extract_namespace({"env.a": 1, "b": 2}, "env.") == {"a": 1}
    with pytest.raises(TypeError):
        extract_namespace(3, "env.")


def test_adjusted_defaults_keep_limits_and_descriptions() -> None:
    adjusted = adjust_model_defaults(TeacherDistillationConfig, {"teacher_top_k": 5, "unknown": 1})
    assert adjusted.__name__ == "TeacherDistillationConfigWithDefaults"
    assert adjusted().model_dump() == {**TeacherDistillationConfig().model_dump(), "teacher_top_k": 5}
    assert adjusted.model_fields["teacher_top_k"].description
    with pytest.raises(ValidationError):
        adjusted(teacher_top_k=-2)


def test_the_prefixed_model_keeps_the_limits() -> None:
    with pytest.raises(ValidationError):
        get_prefixed_pydantic_model(TeacherDistillationConfig, "env.")(**{"env.teacher_top_k": -2})

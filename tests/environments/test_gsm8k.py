"""GSM8K: reading the data, reading answers, and the rewards."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from atroposlib.errors import UsageError


@pytest.fixture
def module() -> Any:
    import gsm8k_server

    return gsm8k_server


def test_every_gold_answer_of_the_sample_is_a_number(module: Any, sample_path: Path) -> None:
    rows = module.read_rows(sample_path)
    answers = [module.gold_answer(row["answer"]) for row in rows]
    assert len(rows) == 25
    assert None not in answers
    assert answers[:3] == [Decimal(72), Decimal(10), Decimal(5)]


def test_file_is_split_into_training_and_held_out_problems(module: Any, sample_path: Path) -> None:
    config = module.GSM8kConfig(dataset_path=str(sample_path), eval_problems=100)
    train, test = module.load_rows(config)
    everything = module.read_rows(sample_path)
    assert (len(train), len(test)) == (23, 2)
    assert sorted(row["question"] for row in train + test) == sorted(row["question"] for row in everything)
    assert module.load_rows(config) == (train, test)


@pytest.mark.parametrize("line", ["not json", '{"question": "only"}', "[1]", ""])
def test_broken_line_is_named(module: Any, tmp_path: Path, line: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "#### 1"}) + "\n" + line + "\n")
    with pytest.raises(UsageError, match=r"data\.jsonl:2"):
        module.read_rows(path)


def test_missing_file_is_a_usage_error(module: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        module.read_rows(tmp_path / "nowhere.jsonl")
    assert caught.value.code == "usage.file"


def test_file_too_small_to_hold_anything_out_is_refused(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"question": "q", "answer": "#### 1"}))
    with pytest.raises(UsageError, match="too small"):
        module.load_rows(module.GSM8kConfig(dataset_path=str(path)))


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}", "42"),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{4", None),
        ("42", None),
    ],
)
def test_last_closed_box_counts(module: Any, text: str, content: str | None) -> None:
    assert module.boxed(text) == content


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (r"\boxed{72}", 1.0),
        (r"\boxed{72.0}", 1.0),
        (r"\boxed{\$72}", 1.0),
        (r"\boxed{72\%}", 1.0),
        (r"\boxed{ 72. }", 1.0),
        (r"\boxed{73}", -1.0),
        (r"\boxed{seventy-two}", -1.0),
        ("72", -1.0),
    ],
)
def test_reward_is_for_the_right_number_in_the_box(module: Any, text: str, reward: float) -> None:
    assert module.reward(text, Decimal(72)) == reward


def test_thousands_separators_do_not_matter(module: Any) -> None:
    assert module.reward(r"\boxed{1,080}", module.gold_answer("9 * 120 = 1080\n#### 1,080")) == 1.0

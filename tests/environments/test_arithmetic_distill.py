"""The word problems: fixed by their seed, many, right, and held out where they should be."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "environments" / "arithmetic_distill.py"

# What each template's numbers mean, read from its text alone.
SOLVERS = {
    r"has (\d+) \w+, finds (\d+) more and gives (\d+) away": lambda a, b, c: a + b - c,
    r"fills (\d+) \w+ with (\d+) \w+ each and keeps (\d+) ": lambda a, b, c: a * b + c,
    r"has (\d+) \w+\. \w+ has (\d+) more": lambda a, b: a + (a + b),
    r"owns (\d+) \w+ and \w+ owns (\d+) times as many": lambda a, b: a * b,
    r"buys (\d+) \w+ for (\d+) dollars each and pays with (\d+)": lambda a, b, c: c - a * b,
    r"shares (\d+) \w+ among (\d+) friends so that each gets (\d+)": lambda a, b, c: a - b * c,
    r"starts with (\d+) \w+ and collects (\d+) \w+ every day for (\d+) days": lambda a, b, c: a + b * c,
}


@pytest.fixture
def module() -> Any:
    """The environment's module, imported by its path as the demo does it."""
    spec = importlib.util.spec_from_file_location("arithmetic_distill_by_path", FILE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def solve(question: str) -> int:
    for pattern, compute in SOLVERS.items():
        found = re.search(pattern, question)
        if found:
            return int(compute(*map(int, found.groups())))
    raise AssertionError(question)


def test_answers_are_right(module: Any) -> None:
    problems = [module.word_problem(seed) for seed in range(2000)]
    assert all(solve(question) == answer for question, answer in problems)
    assert min(answer for _, answer in problems) >= 0


def test_problem_is_fixed_by_its_seed(module: Any) -> None:
    assert module.word_problem(17) == module.word_problem(17)
    assert module.word_problem(3) == (
        "Sven fills 7 baskets with 11 magnets each and keeps 16 magnets loose. "
        "How many magnets does Sven have in total?",
        93,
    )


def test_thousands_of_problems_are_distinct_and_every_template_occurs(module: Any) -> None:
    questions = [module.word_problem(seed)[0] for seed in range(5000)]
    assert len(set(questions)) > 4900
    used = {pattern for pattern in SOLVERS for question in questions if re.search(pattern, question)}
    assert used == set(SOLVERS)


def test_held_out_problems_are_not_those_of_training(module: Any) -> None:
    held_out = {module.word_problem(module.HELD_OUT_FROM + index)[0] for index in range(64)}
    training = {module.word_problem(seed)[0] for seed in range(20_000)}
    assert not held_out & training


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 12.", 12),
        ("3 + 4 = 7", 7),
        ("1,234 apples", 1234),
        ("it costs -5", -5),
        ("2.50 dollars", 2.5),
        ("none", None),
    ],
)
def test_final_number(module: Any, text: str, number: float | None) -> None:
    assert module.final_number(text) == number


async def test_items_follow_the_seed_and_never_reach_the_held_out_ones(module: Any) -> None:
    env = object.__new__(module.ArithmeticDistillEnv)
    env.config = SimpleNamespace(seed=5)
    await env.setup()
    items = [await env.get_next_item() for _ in range(3)]
    assert [item["seed"] for item in items] == [5, 6, 7]
    assert [(item["question"], item["answer"]) for item in items] == [
        module.word_problem(seed) for seed in (5, 6, 7)
    ]
    env.next_seed = module.HELD_OUT_FROM
    assert (await env.get_next_item())["seed"] == 0

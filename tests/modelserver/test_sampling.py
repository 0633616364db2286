"""Tokens are drawn from the distribution that was asked for, by generators of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from atroposlib.modelserver.sampling import choose, new_generator
from atroposlib.modelserver.work import Job, SamplingOptions, Sequence
from tests.modelserver.conftest import Served

VOCABULARY = 50


def sequence(seed: int = 0, **options: Any) -> Sequence:
    job = Job([1], SamplingOptions(max_tokens=8, **options), done=lambda _: None)
    return Sequence(job, 0, new_generator(seed), stream=None)  # type: ignore[arg-type]  # no text is decoded


def drawn_ids(logits: torch.Tensor, count: int = 3000, **options: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    row = sequence(**options)
    rows = [row] * count
    return choose(logits.expand(count, -1), rows, frozenset()).numpy()


def random_logits(seed: int) -> torch.Tensor:
    return torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_frequencies_are_those_of_the_tempered_distribution(temperature: float) -> None:
    logits = random_logits(0)
    counts = np.bincount(drawn_ids(logits, 20_000, temperature=temperature), minlength=VOCABULARY)
    exact = np.exp(logits[0].double().numpy() / temperature)
    exact /= exact.sum()
    # Four standard deviations of a binomial count, and one for rare ids.
    assert np.all(np.abs(counts - 20_000 * exact) <= 4 * np.sqrt(20_000 * exact * (1 - exact)) + 1)


@pytest.mark.parametrize("head", [2, 512])
@pytest.mark.parametrize(
    "options",
    [{"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 12, "top_p": 0.6}, {"min_p": 0.05, "top_k": 3}],
)
def test_filters_leave_exactly_the_ids_of_a_sorted_list(
    options: dict[str, Any], head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = random_logits(1)
    monkeypatch.setattr("atroposlib.modelserver.sampling.SORTED_HEAD", head)
    allowed = brute_force_allowed(logits[0].double().numpy(), **options)
    assert set(drawn_ids(logits, temperature=1.0, **options).tolist()) == allowed


def brute_force_allowed(
    logits: np.ndarray[Any, np.dtype[np.float64]], top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> set[int]:
    probabilities = np.exp(logits) / np.exp(logits).sum()
    order = [int(i) for i in probabilities.argsort()[::-1] if probabilities[i] >= min_p * probabilities.max()]
    order = order[:top_k] if top_k > 0 else order
    total = sum(probabilities[i] for i in order)
    kept: list[int] = []
    for token in order:
        if sum(probabilities[i] for i in kept) >= top_p * total:
            break
        kept.append(token)
    return set(kept)


def test_temperature_zero_takes_the_most_likely_whatever_the_filters() -> None:
    logits = random_logits(2)
    chosen = choose(logits, [sequence(temperature=0.0, top_p=0.1, top_k=1)], frozenset())
    assert chosen.tolist() == [int(logits.argmax())]


def test_end_tokens_are_forbidden_before_min_tokens() -> None:
    logits = torch.zeros(2, VOCABULARY)
    logits[:, 7] = 50.0
    early = sequence(temperature=0.0, min_tokens=2)
    late = sequence(temperature=0.0, min_tokens=2)
    late.ids.extend([1, 1])
    chosen = choose(logits, [early, late], frozenset({7})).tolist()
    assert chosen[0] != 7
    assert chosen[1] == 7


def test_impossible_ids_are_never_drawn() -> None:
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, 11] = 0.0
    assert set(drawn_ids(logits, 500, temperature=1.0).tolist()) == {11}


PROMPT = [40, 41, 42, 43]


async def test_seeded_tokens_do_not_depend_on_the_rest_of_the_batch(tiny: Served) -> None:
    body = {"max_tokens": 20, "seed": 11, "return_token_ids": True, "ignore_eos": True, "temperature": 1.0}
    (alone,) = await tiny.complete(PROMPT, **body)
    others = [
        tiny.complete([7] * n, max_tokens=15, n=3, ignore_eos=True, temperature=1.0) for n in (1, 9, 30)
    ]
    (crowded,), *_ = await asyncio.gather(tiny.complete(PROMPT, **body), *others)
    assert crowded["token_ids"] == alone["token_ids"]


async def test_choices_of_a_seeded_request_have_consecutive_seeds(tiny: Served) -> None:
    body = {"max_tokens": 12, "return_token_ids": True, "ignore_eos": True, "temperature": 1.0}
    together = await tiny.complete(PROMPT, n=3, seed=5, **body)
    apart = [(await tiny.complete(PROMPT, seed=5 + index, **body))[0] for index in range(3)]
    assert [choice["token_ids"] for choice in together] == [choice["token_ids"] for choice in apart]


async def test_requests_without_a_seed_differ(tiny: Served) -> None:
    body = {"max_tokens": 20, "return_token_ids": True, "ignore_eos": True, "temperature": 1.0}
    first, second = [(await tiny.complete(PROMPT, **body))[0] for _ in range(2)]
    assert first["token_ids"] != second["token_ids"]

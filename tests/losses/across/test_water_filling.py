"""The completed teacher: a distribution that fits what is known, and the nearest of all that do."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atroposlib.losses.across.water_filling import water_filled

Floats = NDArray[np.float64]


def case(seed: int, sharpness: float) -> tuple[Floats, Floats, list[list[int]], NDArray[np.bool_]]:
    """Teacher and student over 12 tokens, cells of tokens with a last one for the tail, and named tokens."""
    random = np.random.default_rng(seed)
    teacher, student = random.dirichlet(np.full(12, sharpness), 2) + 1e-12
    cell_of = random.integers(0, 5, 12)
    cells = [np.flatnonzero(cell_of == cell).tolist() for cell in range(5)]
    named = random.random(12) < 0.5
    return teacher / teacher.sum(), student / student.sum(), [cell for cell in cells if cell], named


def filled(
    teacher: Floats, student: Floats, cells: list[list[int]], named: NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats, list[bool]]:
    known = np.array([teacher[cell][named[cell]].sum() for cell in cells])
    is_open = [not named[cell].all() for cell in cells]
    of_student = np.array([student[cell].sum() for cell in cells])
    complete = water_filled(
        torch.from_numpy(known)[None], torch.tensor([is_open]), torch.from_numpy(of_student)[None]
    )[0].numpy()
    return complete, known, of_student, is_open


def kl(q: Floats, p: Floats) -> float:
    some = q > 0
    return float((q[some] * np.log(q[some] / p[some])).sum())


def by_bisection(known: Floats, student: Floats, is_open: list[bool]) -> Floats:
    low, high = 0.0, 1e15
    for _ in range(400):
        level = (low + high) / 2 if low == 0 and high < 1e-12 else np.sqrt(max(low, 1e-300) * high)
        found = np.where(is_open, np.maximum(known, level * student), known)
        low, high = (level, high) if found.sum() < 1 else (low, level)
    return found


@given(seed=st.integers(0, 10_000), sharpness=st.sampled_from([0.1, 0.5, 3.0]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_it_is_a_distribution_that_fits_and_equals_the_level_found_by_bisection(
    seed: int, sharpness: float
) -> None:
    teacher, student, cells, named = case(seed, sharpness)
    complete, known, of_student, is_open = filled(teacher, student, cells, named)
    assert np.isclose(complete.sum(), 1.0)
    assert (complete >= known - 1e-12).all()
    closed = ~np.array(is_open)
    np.testing.assert_array_equal(complete[closed], known[closed])
    np.testing.assert_allclose(complete, by_bisection(known, of_student, is_open), atol=1e-9)


@given(seed=st.integers(0, 10_000), sharpness=st.sampled_from([0.1, 0.5, 3.0]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_its_kl_is_a_lower_bound_of_the_true_one_and_of_every_teacher_that_fits(
    seed: int, sharpness: float
) -> None:
    teacher, student, cells, named = case(seed, sharpness)
    complete, known, of_student, is_open = filled(teacher, student, cells, named)
    least = kl(complete, of_student)
    coarse = kl(np.array([teacher[cell].sum() for cell in cells]), of_student)
    assert -1e-9 <= least <= coarse + 1e-9 <= kl(teacher, student) + 2e-9
    random = np.random.default_rng(seed)
    left = 1.0 - known.sum()
    for _ in range(5):
        share = random.dirichlet(np.full(len(cells), 0.5)) * np.array(is_open)
        if share.sum() > 0:
            other = known + left * share / share.sum()
            assert least <= kl(other, of_student) + 1e-9
            # The same one is the nearest for the reverse KL.
            if (other > 0).all():
                assert kl(of_student, complete) <= kl(of_student, other) + 1e-9


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_bound_rises_with_what_is_named_up_to_the_coarse_kl(seed: int) -> None:
    teacher, student, cells, _ = case(seed, 0.5)
    order = np.argsort(-teacher)
    bounds = []
    for count in range(13):
        named = np.isin(np.arange(12), order[:count])
        complete, _, of_student, _ = filled(teacher, student, cells, named)
        bounds.append(kl(complete, of_student))
    assert np.all(np.diff(bounds) >= -1e-9)
    assert np.isclose(bounds[-1], kl(np.array([teacher[cell].sum() for cell in cells]), of_student))


def test_equal_models_give_themselves_back() -> None:
    teacher, _, cells, named = case(1, 0.5)
    complete, _, of_student, _ = filled(teacher, teacher, cells, named)
    np.testing.assert_allclose(complete, of_student)


def test_events_that_no_side_has_stay_empty() -> None:
    known = torch.tensor([[0.5, 0.0, 0.2]], dtype=torch.float64)
    student = torch.tensor([[0.3, 0.0, 0.7]], dtype=torch.float64)
    complete = water_filled(known, torch.tensor([[False, True, True]]), student)
    assert complete.tolist() == [[0.5, 0.0, 0.5]]

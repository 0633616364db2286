"""Masses of cells at a cut against sums over dictionaries."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.collate.across.pair import MARKER
from atroposlib.collate.across.teacher_cells import same_cells, teacher_cells
from tests.support.toy_losses import components, first_letter, is_safe
from tests.support.toy_world import LETTERS, SIDES, toy_pair

WIDTH = SIDES[1].bos + 1


@given(seed=st.integers(0, 10_000), columns=st.integers(1, WIDTH))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_cells_have_the_sums_of_their_named_tokens_given_the_class(seed: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    before = int(random.choice([*LETTERS, MARKER]))
    allowed = [letter for letter in LETTERS if before == MARKER or is_safe(SIDES, before, letter)]
    whole = random.dirichlet(np.full(WIDTH, 0.5)) + 1e-9
    inside = [number for number in range(WIDTH) if first_letter(SIDES[1], number) in {*allowed, -1}]
    token = int(random.choice(inside))
    others = random.permutation([number for number in range(WIDTH) if number != token])[: columns - 1]
    ids = np.append([token], others)
    ids[1:][random.random(len(others)) < 0.3] = -1
    named = {int(number): whole[number] / whole.sum() for number in ids if number >= 0}
    masses = np.array([[named.get(int(number), 0.0) for number in ids]])
    found = teacher_cells(toy_pair(), ids[None], masses, np.array([[before, before]]))

    share = sum(mass for number, mass in named.items() if number in inside) / sum(named.values())
    label = toy_pair().teacher.component
    expected: dict[int, float] = {}
    for number, mass in named.items():
        if number in inside:
            expected[int(label[number])] = expected.get(int(label[number]), 0.0) + mass / share
    assert math.isclose(float(found.boundary[0]), math.log(share), abs_tol=1e-12)
    cells = {int(cell): place for place, cell in enumerate(found.cells[0]) if cell >= 0}
    assert cells.keys() == expected.keys() - {-1}
    for cell, place in cells.items():
        assert math.isclose(found.cell_mass[0, place], expected[cell], rel_tol=1e-12)
        members = np.flatnonzero(label[:-1] == cell)
        assert found.cell_open[0, place] == any(int(number) not in named for number in members)
    assert math.isclose(float(found.tail_mass[0]), expected.get(-1, 0.0), abs_tol=1e-15)
    assert math.isclose(
        float(found.cell_mass.sum() + found.tail_mass.sum()), sum(named.values()), rel_tol=1e-9
    )
    assert found.observed_cell[0] == cells[int(label[token])]


def test_a_cell_is_sampled_where_its_token_alone_ranks_below_all_others() -> None:
    label = components(SIDES)[1]
    first = {cell: next(n for n in label if label[n] == cell) for cell in set(label.values())}
    one, other, third = list(first.values())[:3]
    masses = np.array([[0.1, 0.5, 0.2], [0.3, 0.5, 0.2], [0.1, 0.0, 0.0]])
    ids = np.array([[one, other, third], [one, other, third], [one, -1, -1]])
    found = teacher_cells(toy_pair(), ids, masses, np.full((3, 2), MARKER))
    assert found.sampled_cell.tolist() == [True, False, False]


def test_a_named_mass_above_one_by_rounding_is_a_distribution() -> None:
    ids = np.arange(WIDTH)[None]
    masses = np.full((1, WIDTH), 1.0005 / WIDTH)
    found = teacher_cells(toy_pair(), ids, masses, np.full((1, 2), MARKER))
    assert math.isclose(float(found.cell_mass.sum() + found.tail_mass.sum()), 1.0)


def test_a_students_token_is_in_the_observed_cell_or_not() -> None:
    pair = toy_pair()
    cells = np.array([[0, 2, -1]])
    inside = int(np.flatnonzero(pair.student.component == 2)[0])
    outside = int(np.flatnonzero(pair.student.component == 1)[0])
    for token, observed, expected in [
        (inside, 1, True),
        (inside, 0, False),
        (outside, 3, True),
        (99, 3, True),
    ]:
        found = same_cells(pair, np.array([token]), cells, np.array([observed]))
        assert found.tolist() == [expected]

"""Every loss gives the same values and gradients on 2 and 4 ranks as in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from tests.losses.parallel.cases import CASES, all_results
from tests.losses.parallel.mesh import Mesh
from tests.support.ranks import run_on_ranks

MESHES = {2: [(2, 1), (1, 2)], 4: [(4, 1), (2, 2)]}
"""(tensor size, context size) by how many processes they need."""

ALL_MESHES = [sizes for meshes in MESHES.values() for sizes in meshes]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.int64: 0, torch.bool: 0}
"""Of the difference, over the largest value of the tensor or 1."""

OnRanks = Callable[[tuple[int, int], str], list[dict[str, Tensor]]]
InOneProcess = Callable[[str], dict[str, Tensor]]


@pytest.fixture(scope="module")
def on_ranks() -> OnRanks:
    """What a case gives on each rank of a mesh.

    The ranks run all cases when they are first asked: a process takes seconds to import torch, a case
    milliseconds.
    """

    @cache
    def started(processes: int) -> list[list[dict[str, dict[str, Tensor]]]]:
        return run_on_ranks(all_results, processes, MESHES[processes], seconds=240)

    def answers(sizes: tuple[int, int], case: str) -> list[dict[str, Tensor]]:
        processes = sizes[0] * sizes[1]
        place = MESHES[processes].index(sizes)
        return [by_mesh[place][case] for by_mesh in started(processes)]

    return answers


@pytest.fixture(scope="module")
def in_one_process() -> InOneProcess:
    """What a case gives without any group."""
    return cache(lambda case: CASES[case](Mesh()))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sizes", ALL_MESHES, ids=lambda sizes: "TP{}xCP{}".format(*sizes))
def test_ranks_equal_one_process(
    case: str, sizes: tuple[int, int], on_ranks: OnRanks, in_one_process: InOneProcess
) -> None:
    right = in_one_process(case)
    for rank, answer in enumerate(on_ranks(sizes, case)):
        assert answer.keys() == right.keys()
        for name, value in right.items():
            difference = (answer[name].double() - value.double()).abs().max()
            scale = max(1.0, float(value.double().abs().max()))
            assert float(difference) <= TOLERANCE[value.dtype] * scale, (rank, name, answer[name], value)


@pytest.mark.parametrize("case", CASES)
def test_the_case_has_a_gradient(case: str, in_one_process: InOneProcess) -> None:
    found = in_one_process(case)
    gradients = [value for name, value in found.items() if name in ("hidden", "weight", "logits")]
    assert gradients
    assert all(
        bool(gradient.isfinite().all()) and float(gradient.abs().max()) > 1e-3 for gradient in gradients
    )

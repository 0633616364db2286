"""Every loss that is computed on a mesh and compared with one process."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tests.losses.parallel.across_cases import across_cases
from tests.losses.parallel.compatible_cases import compatible_cases
from tests.losses.parallel.decision_cases import decision_cases
from tests.losses.parallel.engine_cases import engine_cases
from tests.losses.parallel.mesh import Case, mesh_of
from tests.losses.parallel.sparse_cases import sparse_cases

CASES: dict[str, Case] = {
    **engine_cases(),
    **sparse_cases(),
    **across_cases(),
    **compatible_cases(),
    **decision_cases(),
}


def all_results(meshes: Sequence[tuple[int, int]]) -> list[dict[str, dict[str, Tensor]]]:
    """What every case gives on this rank, mesh by mesh (tensor size, context size); for ``run_on_ranks``."""
    found = []
    for sizes in meshes:
        mesh = mesh_of(*sizes)
        answers = {}
        for name, case in CASES.items():
            try:
                answers[name] = case(mesh)
            except Exception as failure:  # whatever it is goes on, with the case's name
                failure.add_note(f"in case {name!r} on a mesh of {sizes}")
                raise
        found.append(answers)
    return found

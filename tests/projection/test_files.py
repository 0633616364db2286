"""Projection files: what is written comes back, NeMo RL's forms are read, and nothing in a file is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from atroposlib.errors import ConfigError
from atroposlib.projection.files import Projection, ProjectionFacts, load, save
from atroposlib.projection.rows import NO_ID, Rows

INDICES = np.array([[2, 0, NO_ID], [1, NO_ID, NO_ID], [NO_ID, NO_ID, NO_ID], [0, 3, 5]])
WEIGHTS = np.array([[0.75, 0.25, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.25, 0.25]])
CELLS = {(0, 2): 0.75, (0, 0): 0.25, (1, 1): 1.0, (3, 0): 0.5, (3, 3): 0.25, (3, 5): 0.25}
FACTS = ProjectionFacts("a student", "a teacher", "1f", "2f", {"top_k": 3, "exact_map": True})


def cells_of(projection: Projection) -> dict[tuple[int, int], float]:
    cells = projection.cells
    pairs = zip(cells.student.tolist(), cells.teacher.tolist(), strict=True)
    return dict(zip(pairs, cells.weights.tolist(), strict=True))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "projection.safetensors"
    save(Rows(INDICES, WEIGHTS), FACTS, file)
    found = load(file)
    assert cells_of(found) == CELLS
    assert found.student_size == 4
    assert found.facts == FACTS
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_the_memory_order_of_an_array_changes_nothing(tmp_path: Path) -> None:
    save(Rows(np.asfortranarray(INDICES), np.asfortranarray(WEIGHTS)), FACTS, tmp_path / "p.safetensors")
    assert cells_of(load(tmp_path / "p.safetensors")) == CELLS


def test_the_same_projection_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save(Rows(INDICES, WEIGHTS), FACTS, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_weights_that_were_parameters_are_read(tmp_path: Path) -> None:
    weights = torch.nn.Parameter(torch.from_numpy(WEIGHTS))
    torch.save({"indices": torch.from_numpy(INDICES), "likelihoods": weights}, tmp_path / "p.pt")
    assert cells_of(load(tmp_path / "p.pt")) == CELLS


@pytest.mark.parametrize("names", [("student_model_id", "teacher_model_id"), ("model_A_id", "model_B_id")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dense_form_of_torch_is_read(tmp_path: Path, names: tuple[str, str], dtype: torch.dtype) -> None:
    content = {
        "indices": torch.from_numpy(INDICES),
        "likelihoods": torch.from_numpy(WEIGHTS).to(dtype),
        names[0]: "s",
        names[1]: "t",
        "enable_scale_trick": True,
    }
    torch.save(content, tmp_path / "p.pt")
    found = load(tmp_path / "p.pt")
    assert cells_of(found) == CELLS
    assert found.facts == ProjectionFacts("s", "t", settings={"scale_trick": True})


def test_weight_of_no_token_is_left_out(tmp_path: Path) -> None:
    weights = WEIGHTS.copy()
    weights[1] = [0.75, 0.0, 0.25]
    torch.save(
        {"indices": torch.from_numpy(INDICES), "likelihoods": torch.from_numpy(weights)}, tmp_path / "p.pt"
    )
    assert cells_of(load(tmp_path / "p.pt")) == CELLS | {(1, 1): 0.75}


def test_the_sparse_form_of_torch_is_read(tmp_path: Path) -> None:
    torch.save({**CELLS, (2, 2): 0.0}, tmp_path / "p.pt")
    found = load(tmp_path / "p.pt")
    assert cells_of(found) == CELLS
    assert found.student_size == 4
    assert found.facts == ProjectionFacts()


class _Runs:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path, legacy: bool) -> None:
    file, mark = tmp_path / "p.pt", tmp_path / "ran"
    if legacy:
        file.write_bytes(pickle.dumps({"indices": _Runs(mark)}, protocol=2))
    else:
        torch.save({"indices": _Runs(mark)}, file)
    with pytest.raises(ConfigError, match="the projection cannot be read"):
        load(file)
    assert not mark.exists()


def tensors(indices: Any, likelihoods: Any) -> dict[str, torch.Tensor]:
    return {"indices": torch.tensor(indices), "likelihoods": torch.tensor(likelihoods)}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([1, 2], "got list, expected a mapping"),
        ({"a": 1}, "keys ['a']"),
        ({("a", "b"): 1.0}, "pairs of ids with weights"),
        ({(0, 1): "x"}, "pairs of ids with weights"),
        ({(-1, 1): 0.5}, "ids -1 to -1"),
        ({(0, 1 << 40): 0.5}, "ids below"),
        ({(0, 1): float("nan")}, "negative or not finite"),
        ({"indices": [1], "likelihoods": [1.0]}, "two tensors"),
        (tensors([[1, 2]], [[1.0]]), "[V_s, k] twice"),
        (tensors([1], [1.0]), "[V_s, k] twice"),
        (tensors([[1.0]], [[1.0]]), "integers and floats"),
        (tensors([[-2]], [[1.0]]), "ids -2 to -2"),
        (tensors([[1]], [[-0.5]]), "negative or not finite"),
        (tensors([[1]], [[float("inf")]]), "negative or not finite"),
    ],
)
def test_what_is_no_projection_is_told(tmp_path: Path, content: Any, told: str) -> None:
    torch.save(content, tmp_path / "p.pt")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "p.pt")
    assert caught.value.code == "usage.file"
    assert caught.value.where == str(tmp_path / "p.pt")
    assert told in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"no tensors at all"])
@pytest.mark.parametrize("name", ["p.pt", "p.safetensors"])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, content: bytes | None, name: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match="the projection cannot be read"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "metadata", "told"),
    [
        (("indices", "weights"), None, "tensors ['indices', 'weights']"),
        (("indices", "likelihoods"), {"atropos-projection-1": "{"}, "metadata"),
        (("indices", "likelihoods"), {"atropos-projection-1": '{"student": 1}'}, "metadata"),
    ],
)
def test_other_tensors_are_told(
    tmp_path: Path, names: tuple[str, str], metadata: dict[str, str] | None, told: str
) -> None:
    arrays = dict(zip(names, (INDICES, WEIGHTS.astype(np.float32)), strict=True))
    save_file(arrays, tmp_path / "p.safetensors", metadata)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "p.safetensors")
    assert told in str(caught.value)

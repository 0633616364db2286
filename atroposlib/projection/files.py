"""Projection files: safetensors to write and read, and the ``.pt`` forms of NeMo RL to read."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from atroposlib.align.tables.building import MOST_IDS
from atroposlib.errors import ConfigError
from atroposlib.projection.rows import NO_ID, Cells, Rows, joined

KEY = "atropos-projection-1"
"""Under which a file's metadata tells its facts, as JSON."""


class ProjectionFacts(msgspec.Struct, frozen=True):
    """What a projection file says of itself; empty where it does not.

    Attributes:
        student: Name of the student's tokenizer or model.
        teacher: Of the teacher's.
        student_fingerprint: Of the student's byte table.
        teacher_fingerprint: Of the teacher's.
        settings: How it was built.
    """

    student: str = ""
    teacher: str = ""
    student_fingerprint: str = ""
    teacher_fingerprint: str = ""
    settings: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Projection:
    """A sparse matrix from a student's vocabulary to a teacher's.

    Attributes:
        cells: Its entries, by rows; weight that a file gives to no token is left out.
        student_size: V_s, the rows.
        facts: Where it comes from.
        listed: The columns as the file lists them, those of weight 0 too; None where it lists pairs of ids.
    """

    cells: Cells
    student_size: int
    facts: ProjectionFacts
    listed: Rows | None = None


def save(rows: Rows, facts: ProjectionFacts, path: Path) -> None:
    """Write a projection as ``indices`` int64 and ``likelihoods`` float32 [V_s, k], and facts as metadata.

    The same rows and facts are the same bytes. The file has its name once it is whole.
    """
    # One key, since the library writes several in an order that changes from run to run.
    metadata = {KEY: msgspec.json.encode(facts, order="sorted").decode()}
    tensors: dict[str, npt.NDArray[Any]] = {
        "indices": np.ascontiguousarray(rows.indices),
        # The library writes an array's memory whatever its order.
        "likelihoods": np.ascontiguousarray(rows.weights, dtype=np.float32),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as scratch:
        made = Path(scratch, path.name)
        save_file(tensors, made, metadata)
        made.replace(path)


def load(path: str | Path) -> Projection:
    """Read a projection: safetensors, or a ``.pt`` file of NeMo RL in its dense or sparse form.

    Raises:
        ConfigError: The file cannot be read, or is no projection (``usage.file``).
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise unreadable(file, "there is no such file")
    if file.suffix == ".pt":
        # Imports torch, which nothing else here needs.
        from atroposlib.projection.pt_files import load_pt

        return load_pt(file)
    try:
        with safe_open(file, framework="np") as opened:
            told = (opened.metadata() or {}).get(KEY, "{}")
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise unreadable(file, f"{type(error).__name__}: {error}") from error
    if set(tensors) != {"indices", "likelihoods"}:
        raise unreadable(file, f"tensors {sorted(tensors)}", "indices and likelihoods")
    return of_rows(tensors["indices"], tensors["likelihoods"], _facts(told, file), file)


def _facts(told: str, file: Path) -> ProjectionFacts:
    try:
        return msgspec.json.decode(told, type=ProjectionFacts)
    except msgspec.MsgspecError as error:
        raise unreadable(file, f"metadata: {error}") from error


def unreadable(file: Path, got: object, expected: object = None) -> ConfigError:
    """The error for a file that is no projection, to be raised."""
    return ConfigError(
        "the projection cannot be read",
        code="usage.file",
        where=str(file),
        got=got,
        expected=expected,
        fix="make one with `atropos projection build`",
    )


def of_rows(
    indices: npt.NDArray[Any], likelihoods: npt.NDArray[Any], facts: ProjectionFacts, file: Path
) -> Projection:
    """The projection that two arrays [V_s, k] of a file say.

    Raises:
        ConfigError: They say none (``usage.file``).
    """
    if indices.ndim != 2 or indices.shape != likelihoods.shape or 0 in indices.shape:
        raise unreadable(
            file, f"indices {indices.shape} and likelihoods {likelihoods.shape}", "[V_s, k] twice"
        )
    if indices.dtype.kind not in "iu" or likelihoods.dtype.kind != "f":
        raise unreadable(file, f"{indices.dtype} and {likelihoods.dtype}", "integers and floats")
    rows, columns = np.nonzero(indices != NO_ID)
    cells = Cells(
        rows, indices[rows, columns].astype(np.int64), likelihoods[rows, columns].astype(np.float64)
    )
    return Projection(checked(cells, file), len(indices), facts, Rows(indices, likelihoods))


def checked(cells: Cells, file: Path) -> Cells:
    """The entries without those of weight 0, each cell once.

    Raises:
        ConfigError: An id or a weight that cannot be one (``usage.file``).
    """
    for ids in (cells.student, cells.teacher):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < MOST_IDS:
            raise unreadable(file, f"ids {int(ids.min())} to {int(ids.max())}", f"ids below {MOST_IDS}")
    if not (np.isfinite(cells.weights) & (cells.weights >= 0)).all():
        raise unreadable(file, "a weight that is negative or not finite")
    some = cells.weights > 0
    return joined([Cells(cells.student[some], cells.teacher[some], cells.weights[some])])

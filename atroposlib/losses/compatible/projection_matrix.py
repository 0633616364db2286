"""A projection on a device: the student's probabilities as probabilities of the teacher's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from atroposlib.projection import files
from atroposlib.projection.rows import Rows


@dataclass(frozen=True, slots=True)
class ProjectionMatrix:
    """Sparse [V_s, V_t]; E entries, each cell once.

    Attributes:
        student: int64 [E] rows.
        teacher: int64 [E] columns.
        weights: float64 [E].
        student_size: V_s.
        teacher_size: V_t.
        listed: The columns as the file lists them, by rows; None where it lists pairs.
    """

    student: Tensor
    teacher: Tensor
    weights: Tensor
    student_size: int
    teacher_size: int
    listed: Rows | None

    @staticmethod
    def load(path: str | Path, student_size: int = 0, teacher_size: int = 0) -> ProjectionMatrix:
        """Read a projection file; a size below the file's own ids grows to fit them.

        Raises:
            ConfigError: It cannot be read (``usage.file``).
        """
        projection = files.load(path)
        cells = projection.cells
        return ProjectionMatrix(
            torch.from_numpy(cells.student),
            torch.from_numpy(cells.teacher),
            torch.from_numpy(cells.weights),
            max(student_size, projection.student_size),
            max(teacher_size, int(cells.teacher.max(initial=-1)) + 1),
            projection.listed,
        )

    def to(self, device: torch.device) -> ProjectionMatrix:
        """The same on a device."""
        return ProjectionMatrix(
            self.student.to(device),
            self.teacher.to(device),
            self.weights.to(device),
            self.student_size,
            self.teacher_size,
            self.listed,
        )

    def rows(self, start: int, end: int) -> ProjectionMatrix:
        """Rows ``start`` to ``end``, which become 0 to ``end - start``."""
        kept = (self.student >= start) & (self.student < end)
        return self._kept(
            kept, self.student[kept] - start, self.teacher[kept], (end - start, self.teacher_size)
        )

    def columns(self, ids: Tensor) -> ProjectionMatrix:
        """The columns ``ids`` int64 [k], each once, which become 0 to k - 1."""
        place = torch.full((self.teacher_size,), -1, device=ids.device)
        place[ids] = torch.arange(len(ids), device=ids.device)
        kept = place[self.teacher] >= 0
        return self._kept(kept, self.student[kept], place[self.teacher[kept]], (self.student_size, len(ids)))

    def weights_outside(self, ids: Tensor) -> Tensor:
        """float64 [V_s]: each row's sum over the columns that are not among ``ids``."""
        inside = torch.zeros(self.teacher_size, dtype=torch.bool, device=ids.device)
        inside[ids] = True
        others = torch.where(inside[self.teacher], 0.0, self.weights)
        return self.weights.new_zeros(self.student_size).index_add(0, self.student, others)

    def _kept(
        self, kept: Tensor, student: Tensor, teacher: Tensor, size: tuple[int, int]
    ) -> ProjectionMatrix:
        return ProjectionMatrix(student, teacher, self.weights[kept], *size, None)

    def projected(self, values: Tensor) -> Tensor:
        """[..., V_t] of [..., V_s]: values times the matrix; differentiable."""
        matrix = torch.sparse_coo_tensor(
            torch.stack([self.teacher, self.student]),
            self.weights.to(values.dtype),
            (self.teacher_size, self.student_size),
            check_invariants=False,
        )
        flat = values.reshape(-1, self.student_size).t()
        product: Tensor = torch.sparse.mm(matrix, flat)
        return product.t().reshape(*values.shape[:-1], self.teacher_size)

"""Which tokens of two vocabularies are the same one, as a projection's rows tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.losses.compatible.projection_matrix import ProjectionMatrix
from atroposlib.projection.rows import NO_ID

RELAXED_WEIGHT = 0.6
"""From which weight on x-token takes a row's heaviest column for the same token."""


@dataclass(frozen=True, slots=True)
class ExactMap:
    """The common tokens, pair by pair, and the rest of each vocabulary; all ascending by student id.

    Attributes:
        common_student: int64 [N].
        common_teacher: int64 [N], each id once.
        uncommon_student: int64, ascending.
        uncommon_teacher: int64, ascending.
    """

    common_student: Tensor
    common_teacher: Tensor
    uncommon_student: Tensor
    uncommon_teacher: Tensor

    def to(self, device: torch.device) -> ExactMap:
        """The same on a device."""
        return ExactMap(
            self.common_student.to(device),
            self.common_teacher.to(device),
            self.uncommon_student.to(device),
            self.uncommon_teacher.to(device),
        )


def exact_map(matrix: ProjectionMatrix, *, relaxed: bool) -> ExactMap:
    """The common tokens by a projection's rows, as its file lists them.

    Args:
        matrix: The projection; of V_s and V_t tokens, ids beyond which are no token.
        relaxed: Take a heaviest column of weight :data:`RELAXED_WEIGHT` or more, and of several students
            the one with the largest weight, then the lowest id. Otherwise only a weight of 1 in a row whose
            second column is empty counts, and of several students the lowest id.

    Raises:
        ConfigError: The file lists pairs of ids, not rows.
    """
    listed = matrix.listed
    if listed is None:
        raise ConfigError(
            "the gold loss needs a projection that lists columns by rows",
            got="pairs of ids",
            fix="make one with `atropos projection build`",
        )
    student_size, teacher_size = matrix.student_size, matrix.teacher_size
    heaviest = listed.weights.argmax(axis=1)
    every = np.arange(len(listed.weights))
    # float32, as files have them: 0.6 there is the bound itself.
    weight = listed.weights[every, heaviest].astype(np.float32)
    teacher = listed.indices[every, heaviest]
    if relaxed:
        same = weight >= np.float32(RELAXED_WEIGHT)
    else:
        same = (weight == 1.0) & (listed.indices[:, 1:2] == NO_ID).all(axis=1)
    same &= (teacher >= 0) & (teacher < teacher_size) & (every < student_size)
    candidates = every[same]
    order = np.lexsort((candidates, -weight[same])) if relaxed else np.arange(len(candidates))
    _, first = np.unique(teacher[same][order], return_index=True)
    student = np.sort(candidates[order][first])
    return ExactMap(
        torch.from_numpy(student),
        torch.from_numpy(teacher[student]),
        torch.from_numpy(np.setdiff1d(np.arange(student_size), student)),
        torch.from_numpy(np.setdiff1d(np.arange(teacher_size), teacher[student])),
    )

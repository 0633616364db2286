"""Each teacher's divergence by the settings: which formula, which projection, divided by which count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atroposlib.errors import LossError
from atroposlib.losses.compatible.cross_tokenizer_config import CrossTokenizerDistillationLossConfig
from atroposlib.losses.compatible.exact_map import ExactMap, exact_map
from atroposlib.losses.compatible.gold import gold
from atroposlib.losses.compatible.interfaces import Data
from atroposlib.losses.compatible.localized import LocalizedAlignment
from atroposlib.losses.compatible.p_kl import p_kl
from atroposlib.losses.compatible.projection_matrix import ProjectionMatrix
from atroposlib.losses.compatible.same_vocabulary import same_vocabulary
from atroposlib.losses.compatible.sparse_columns import SparseColumns, Teacher, width_of
from atroposlib.losses.compatible.terms import Term, View
from atroposlib.losses.groups import Group, Groups, summed


@dataclass(frozen=True, slots=True)
class Batch:
    """What the teachers' terms are computed from.

    Attributes:
        views: One a teacher.
        data: The batch as it came.
        tokens: Trained tokens of the whole step.
        dp_group: Ranks with other rows.
    """

    views: list[View]
    data: Data
    tokens: Tensor
    dp_group: Group | None


class TeacherTerms:
    """The teachers of one loss, with their projections."""

    def __init__(self, cfg: CrossTokenizerDistillationLossConfig) -> None:
        """Read the projections.

        Raises:
            ConfigError: One cannot be read (``usage.file``), or a gold loss has one that lists pairs.
        """
        self.cfg = cfg
        self._maps: dict[int, ExactMap] = {}
        self.matrices = [
            None if path is None else self._loaded(i, path)
            for i, path in enumerate(cfg.projection_matrix_paths)
        ]

    def views(
        self,
        student: Tensor,
        teachers: Mapping[int, Teacher],
        aligns: Mapping[int, LocalizedAlignment],
        groups: Groups,
    ) -> list[View]:
        """Every teacher beside the student's logits [B, t, V_s].

        Raises:
            LossError: The batch lacks a teacher or its alignment, or has shipped columns beside a
                temperature, which does to the other tokens what nobody knows.
        """
        missing = sorted(set(range(len(self.matrices))) - (teachers.keys() & aligns.keys()))
        if missing:
            raise LossError("the batch lacks teachers", got=sorted(teachers), expected=f"also {missing}")
        if self.cfg.temperature != 1.0 and any(isinstance(teachers[i], SparseColumns) for i in teachers):
            raise LossError(
                "a temperature needs the teacher's whole distribution, and only some columns were shipped",
                got=self.cfg.temperature,
                expected=1.0,
                fix="set temperature to 1, or give full logits",
            )
        found = []
        for i, matrix in enumerate(self.matrices):
            if matrix is not None and aligns[i].chunks is None:
                raise LossError(
                    "a teacher with another tokenizer needs its alignment",
                    where=f"teacher {i}",
                    expected=f"alignment_{i}_student_chunk_id and the others in the batch",
                )
            vocabulary = student.shape[-1] if matrix is None else matrix.teacher_size
            found.append(View(student, teachers[i], aligns[i], width_of(teachers[i], vocabulary), groups))
        return found

    def term(self, i: int, batch: Batch) -> Term:
        """Teacher ``i``'s divergence."""
        view, matrix = batch.views[i], self.matrices[i]
        chunks = view.align.chunks
        if matrix is None or chunks is None:
            return same_vocabulary(view, batch.tokens, self.cfg)
        device = view.student.device
        if i in self._maps:
            same = self._maps[i] = self._maps[i].to(device)
            term = gold(view, chunks, same, self.cfg)
        else:
            matrix = self.matrices[i] = matrix.to(device)
            term = p_kl(view, chunks, matrix, self.cfg)
        return replace(term, count=self._chunk_count(i, term.count, batch))

    def _loaded(self, i: int, path: str) -> ProjectionMatrix:
        sizes = self.cfg.teacher_vocab_sizes or [0] * len(self.cfg.projection_matrix_paths)
        matrix = ProjectionMatrix.load(path, self.cfg.student_vocab_size or 0, sizes[i])
        use_gold, xtoken = self.cfg.flags_of(i)
        if use_gold:
            self._maps[i] = exact_map(matrix, relaxed=xtoken)
        return matrix

    def _chunk_count(self, i: int, mine: Tensor, batch: Batch) -> Tensor:
        """What the sum over teacher ``i``'s chunks is divided by."""
        if not self.cfg.global_chunk_counts:
            return summed(mine, batch.dp_group).clamp_min(1)
        name = f"alignment_{i}_global_valid_chunks"
        if name not in batch.data:
            raise LossError("global_chunk_counts needs the step's count of chunks", where=name)
        return torch.as_tensor(batch.data[name], device=mine.device).clamp_min(1)

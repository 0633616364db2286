"""The seed page's cross-tokenizer distillation on the columns that a group's teachers shipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atroposlib.align.chunks import NO_CHUNK
from atroposlib.collate.batch import Batch, collate, row_targets
from atroposlib.collate.other_tokens import Aligned
from atroposlib.collate.sequences import TrainSequence
from atroposlib.collate.sources import Source
from atroposlib.config.losses.compatible import CrossTokenizerDistillation
from atroposlib.config.losses.cross_tokenizer import CrossTokenizerFields
from atroposlib.config.trainer import TrainedTeacher
from atroposlib.errors import ConfigError
from atroposlib.losses.compatible.cross_tokenizer import CrossTokenizerDistillationLossFn, valid_chunk_count
from atroposlib.losses.head import Head
from atroposlib.projection.files import load
from atroposlib.trainer.terms.seed import called, token_data
from atroposlib.trainer.terms.term import Reads, StepCount, TermLoss, require_temperature, sources_in
from atroposlib.types import ABSENT_ID

_NOTHING = Aligned(
    np.zeros(0, np.int64),
    np.zeros((0, 0), np.int64),
    np.zeros((0, 0), np.float32),
    np.zeros(0, np.int64),
    np.zeros(0, np.int64),
)


_READS = Reads(rows=True, aligned=True)


@dataclass(frozen=True, slots=True)
class CrossTokenizerTerm:
    """``cross_tokenizer_distillation`` of the teachers that the settings name.

    Attributes:
        settings: Of the loss.
        teachers: What the settings say of each teacher, in the order in which the loss numbers them.
        vocab_size: Rows of the student's head.
    """

    settings: CrossTokenizerDistillation
    teachers: Mapping[str, TrainedTeacher]
    vocab_size: int
    name: str = "cross_tokenizer_distillation"
    reads: Reads = _READS
    _made: dict[tuple[float, ...], CrossTokenizerDistillationLossFn] = field(default_factory=dict)
    _made_for: dict[str, str] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """See :class:`Term`."""
        return self.settings.weight

    def learns_from(self, source: Source) -> bool:
        """See :class:`Term`."""
        return source.name in self.teachers

    def learned(self, sequence: TrainSequence) -> NDArray[np.int64]:
        """Positions of marked tokens, in a sequence of which some teacher said something."""
        told = any(map(self.learns_from, [*sequence.rows, *sequence.aligned]))
        return np.flatnonzero(sequence.trained) - 1 if told else np.zeros(0, np.int64)

    def count(self, sequences: Sequence[TrainSequence]) -> StepCount:
        """Marked tokens of sequences that a teacher speaks of, and the chunks of each teacher."""
        units, told, chunks = 0, 0, dict.fromkeys(self.teachers, 0)
        for sequence in sequences:
            trained = len(self.learned(sequence))
            units, told = units + trained, told + (trained > 0)
            if not trained:
                continue
            data = self._data(collate([sequence]))
            for i, (name, teacher) in enumerate(self.teachers.items()):
                if teacher.projection is not None:
                    correct = self.settings.exact_token_match_only
                    chunks[name] += valid_chunk_count(data, i, correct_only=correct)
        return StepCount(units, told, chunks)

    def losses(self, states: Tensor, head: Head, batch: Batch, count: StepCount) -> Iterator[TermLoss]:
        """See :class:`Term`."""
        for source in filter(
            self.learns_from, [*sources_in(batch.sequences, "rows"), *sources_in(batch.sequences, "aligned")]
        ):
            require_temperature(self.name, source)
            self._require_projection_of(source)
        data = self._data(batch)
        for i, name in enumerate(self.teachers):
            data[f"alignment_{i}_global_valid_chunks"] = count.chunks[name]
        loss_fn = self.loss_fn(self._weights(batch.sequences))
        loss, metrics = called(loss_fn, states, head, data, count)
        sums = {name: value for name, value in metrics.items() if name.startswith(_SUMS)}
        yield TermLoss(self.name, None, self.settings.weight, loss, sums)

    def _require_projection_of(self, source: Source) -> None:
        """Refuse a projection that was made for another tokenizer than the groups of this teacher have."""
        projection = self.teachers[source.name].projection
        if projection is None or not source.tokenizer:
            return
        if source.name not in self._made_for:
            self._made_for[source.name] = load(projection).facts.teacher_fingerprint
        made_for = self._made_for[source.name]
        if made_for and made_for != source.tokenizer:
            raise ConfigError(
                "the projection was made for another tokenizer than this teacher's",
                where=f"teachers.{source.name}.projection",
                got=f"{projection} for fingerprint {made_for}",
                expected=source.tokenizer,
                fix="make one with `atropos projection build`",
            )

    def loss_fn(self, weights: tuple[float, ...]) -> CrossTokenizerDistillationLossFn:
        """The class with these weights of the teachers.

        Raises:
            ConfigError: Settings that do not fit together, or a projection that cannot be read.
        """
        if weights not in self._made:
            teachers = self.teachers.values()
            sizes = [teacher.vocab_size for teacher in teachers]
            paths = [None if one.projection is None else str(one.projection) for one in teachers]
            self._made[weights] = CrossTokenizerDistillationLossFn(
                self.settings.model_dump(include=set(CrossTokenizerFields.model_fields))
                | {
                    "projection_matrix_paths": paths,
                    "teacher_vocab_sizes": None if None in sizes else sizes,
                    "teacher_weights": list(weights),
                    "teacher_gold_loss": [one.gold_loss for one in teachers],
                    "teacher_xtoken_loss": [one.xtoken_loss for one in teachers],
                    "student_vocab_size": self.vocab_size,
                }
            )
        return self._made[weights]

    def _weights(self, sequences: Sequence[TrainSequence]) -> tuple[float, ...]:
        """Of each teacher: the settings' or the groups', and 1 for one that says nothing here."""
        found: dict[str, float] = {}
        for source in [*sources_in(sequences, "rows"), *sources_in(sequences, "aligned")]:
            if found.setdefault(source.name, source.weight) != source.weight:
                raise ConfigError(
                    "the groups give one teacher several weights",
                    where=f"teachers.{source.name}.weight",
                    got=[found[source.name], source.weight],
                    fix="set it",
                )
        return tuple(found.get(name, one.weight or 1.0) for name, one in self.teachers.items())

    def _data(self, batch: Batch) -> dict[str, Any]:
        data = token_data(batch, [self.learned(one) for one in batch.sequences])
        for i, (name, teacher) in enumerate(self.teachers.items()):
            if teacher.projection is None:
                data |= self._same_tokenizer(batch, i, name)
            else:
                data |= self._other_tokenizer(batch, i, name)
        return data

    def _same_tokenizer(self, batch: Batch, i: int, name: str) -> dict[str, Any]:
        """The columns of a teacher that reads the student's tokens: row p of token p."""
        if any(source.name == name for source in sources_in(batch.sequences, "aligned")):
            raise ConfigError(
                "the teacher has another tokenizer",
                where=f"teachers.{name}.projection",
                fix="make one with `atropos projection build` and name it",
            )
        targets = [
            found
            for source in sources_in(batch.sequences, "rows")
            if source.name == name and (found := row_targets(batch, source)) is not None
        ]
        columns = max((one.ids.shape[1] for one in targets), default=1)
        ids = torch.full((batch.input_ids.numel(), columns), ABSENT_ID, device=batch.input_ids.device)
        logprobs = torch.full(ids.shape, -torch.inf, device=ids.device)
        for one in targets:
            ids[one.positions + 1, : one.ids.shape[1]] = one.ids
            logprobs[one.positions + 1, : one.ids.shape[1]] = one.logprobs
        shape = (*batch.input_ids.shape, columns)
        return {f"teacher_{i}_topk_ids": ids.view(shape), f"teacher_{i}_topk_logprobs": logprobs.view(shape)}

    def _other_tokenizer(self, batch: Batch, i: int, name: str) -> dict[str, Any]:
        """The columns and chunks of a teacher with its own tokens."""
        found = [
            next((one for source, one in sequence.aligned.items() if source.name == name), _NOTHING)
            for sequence in batch.sequences
        ]
        width = max(1, *(len(one.token_ids) for one in found))
        columns = max(1, *(one.ids.shape[1] for one in found))
        chunks = 1 + max(0, *(int(one.student_chunk_id.max(initial=NO_CHUNK)) for one in found))
        arrays = {
            "teacher_{}_input_ids": _stacked([one.token_ids for one in found], (width,), 0),
            "teacher_{}_token_mask": _stacked(
                [(one.teacher_chunk_id != NO_CHUNK).astype(np.float32) for one in found], (width,), 0
            ),
            "teacher_{}_topk_ids": _stacked([one.ids for one in found], (width, columns), ABSENT_ID),
            "teacher_{}_topk_logprobs": _stacked([one.logprobs for one in found], (width, columns), -np.inf),
            "alignment_{}_student_chunk_id": _stacked(
                [one.student_chunk_id for one in found], (batch.input_ids.shape[1],), NO_CHUNK
            ),
            "alignment_{}_teacher_chunk_id": _stacked(
                [one.teacher_chunk_id for one in found], (width,), NO_CHUNK
            ),
            "alignment_{}_pair_valid": np.ones((len(found), chunks), np.bool_),
            # Chunks of bytes are right by what they are.
            "alignment_{}_pair_is_correct": np.ones((len(found), chunks), np.bool_),
        }
        device = batch.input_ids.device
        return {key.format(i): torch.from_numpy(array).to(device) for key, array in arrays.items()}


_SUMS = ("kl_loss", "ce_loss", "negative_kl", "out_of_vocabulary", "rows_without_columns", "averaged_logits")
"""Begins of the names of metrics that add up over micro-batches."""


def _stacked(arrays: Sequence[NDArray[Any]], shape: tuple[int, ...], padding: float) -> NDArray[Any]:
    """[B, *shape] of arrays that are at most that large."""
    result = np.full((len(arrays), *shape), padding, arrays[0].dtype)
    for row, array in enumerate(arrays):
        result[row][tuple(map(slice, array.shape))] = array
    return result


def cross_tokenizer_term(
    settings: CrossTokenizerDistillation, teachers: Mapping[str, TrainedTeacher], vocab_size: int
) -> CrossTokenizerTerm:
    """``cross_tokenizer_distillation`` with these settings.

    Raises:
        ConfigError: No teacher, or settings that do not fit together.
    """
    named = {
        name: teacher
        for name, teacher in teachers.items()
        if teacher.weight != 0 and (settings.teachers is None or name in settings.teachers)
    }
    if not named or set(settings.teachers or ()) - named.keys():
        raise ConfigError(
            "cross_tokenizer_distillation numbers its teachers, so each has to be told",
            where="teachers",
            got=", ".join(teachers) or "none",
            expected=", ".join(settings.teachers or ["one at least"]),
            fix="write teachers.NAME.projection, or teachers.NAME: {} for one with the student's tokenizer",
        )
    term = CrossTokenizerTerm(settings, named, vocab_size)
    term.loss_fn(tuple(teacher.weight or 1.0 for teacher in named.values()))
    return term

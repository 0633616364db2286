"""The training run: batch, step, checkpoint, refresh, until all steps are taken; the journal tells it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path

import torch

from atroposlib.collate.reading import train_sequences
from atroposlib.collate.sequences import CollateCounts
from atroposlib.collate.sources import Source
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import RunError
from atroposlib.journal import Journal
from atroposlib.trainer.checkpoint import (
    CheckpointFacts,
    checkpoint_directory,
    prune_checkpoints,
    save_checkpoint,
)
from atroposlib.trainer.events import batch_fields, step_line
from atroposlib.trainer.leases import LeasedBatch
from atroposlib.trainer.prefetch import BatchPrefetcher
from atroposlib.trainer.settling import Settling
from atroposlib.trainer.step import StepResult, build_optimizer, learning_rate, train_step
from atroposlib.trainer.student import StudentWithLoss
from atroposlib.trainer.teachers import TeacherPairs
from atroposlib.trainer.terms.build import wanted_by
from atroposlib.trainer.untaught import FIXES, NO_TOP_K, no_target, refuse_own_samples
from atroposlib.trainer.weight_sync import WeightSync

logger = logging.getLogger(__name__)

MOST_BAD_STEPS_IN_A_ROW = 3
MOST_UNTAUGHT_BATCHES_IN_A_ROW = 3


class TrainingRun:
    """State of one run.

    Args:
        settings: What to train, and how.
        source: Directory that the student was loaded from.
        start: What of the run is in these weights already.
        student: The student.
        batches: Where batches come from.
        sync: The student's server, or None.
        journal: Where events are written.

    Raises:
        ConfigError: A teacher's tokenizer that the settings name cannot be read.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        source: Path,
        start: CheckpointFacts,
        student: StudentWithLoss,
        batches: BatchPrefetcher,
        sync: WeightSync | None,
        journal: Journal,
    ) -> None:
        self.step = start.step
        self.groups_taken = 0
        self.groups_trained = 0
        self.groups_dropped: Counter[str] = Counter()
        self.settling = Settling(batches.source, journal, start)
        self._settings = settings
        self._source = source
        self._trainer_id = start.trainer_id
        self._student = student
        self._optimizer = build_optimizer(student, settings)
        self._batches = batches
        self._sync = sync
        self._journal = journal
        self._bad_steps = 0
        self._untaught_batches = 0
        self._told_no_top_k = False
        self._hopeless: RunError | None = None
        self._checkpoints: list[Path] = []
        self._save_dtype = save_dtype(settings, student)
        pairs = TeacherPairs(source, settings.teachers)
        self._wanted = wanted_by(student.terms, settings, pairs.of, lambda: self.step)
        for name, teacher in settings.teachers.items():
            if teacher.tokenizer is not None and self._wanted.chunks(Source(name)):
                # A tokenizer that is not there is told before the first step.
                pairs.of(name, "")

    def run(self) -> None:
        """Take all steps.

        Raises:
            ApiError: The trajectory API cannot be used any more.
            ConfigError: A teacher's tokenizer is not at hand, or a loss is refused for what the groups are.
            RunError: train.not_finite or train.no_target, three times in a row; train.no_environment, after
                a checkpoint of what was learnt.
            StudentError: train.refresh_failed, three times in a row.
        """
        while self.step < self._settings.total_steps:
            asked = time.monotonic()
            batch = self._next_batch()
            self.groups_taken += len(batch.groups)
            wait_s = time.monotonic() - asked
            if self.step + 1 < self._settings.total_steps:
                self._batches.request()
            applied = self._train(batch, wait_s)
            self.settling.ack(batch, self.step)
            if self._hopeless is not None:
                raise self._hopeless
            if applied:
                self._save_and_refresh()

    def _next_batch(self) -> LeasedBatch:
        """The next batch; when no environment is left to make one, the weights are saved first."""
        try:
            batch = self._batches.take()
            while self.settling.is_spent(batch):
                self.settling.ack(batch, self.step)
                batch = self._batches.take()
        except RunError:
            if self.step and self._directory() not in self._checkpoints:
                self._save()
            raise
        return batch

    def _train(self, batch: LeasedBatch, wait_s: float) -> bool:
        """Take one optimizer step on the batch; False when no step could be taken."""
        start = time.time()
        sequences, counts = train_sequences(
            batch.groups,
            max_token_len=self._settings.max_token_len,
            vocab_size=self._student.vocab_size,
            wanted=self._wanted,
        )
        self._tell_dropped(counts)
        refuse_own_samples(self._settings.loss, sequences)
        trained = [batch.groups[index] for index in sorted({sequence.group for sequence in sequences})]
        if not trained:
            self._leave_out_untaught(counts)
            return False
        self._untaught_batches = 0
        rate = learning_rate(self.step + 1, self._settings)
        result = train_step(self._student, self._optimizer, sequences, rate=rate, settings=self._settings)
        if not result.applied:
            self._leave_out(result, len(trained), len(sequences))
            return False
        self._bad_steps = 0
        self.step += 1
        self.groups_trained += len(trained)
        event = {
            "step": self.step,
            "start": start,
            "batch_id": batch.batch_id,
            "learning_rate": rate,
            "wait_s": wait_s,
            **batch_fields(trained, sequences, counts, result),
        }
        self._journal.write("step", **event)
        logger.info("%s", step_line(event, self._settings.total_steps, time.time() - start))
        return True

    def _tell_dropped(self, counts: CollateCounts) -> None:
        self.groups_dropped.update(counts.dropped_groups)
        for reason in sorted(counts.dropped_sequences.keys() | counts.dropped_groups.keys()):
            dropped = {
                "sequences": counts.dropped_sequences[reason],
                "groups": counts.dropped_groups[reason],
            }
            self._journal.write("dropped", reason=reason, **dropped)
            logger.warning("dropped %(sequences)d sequences, %(groups)d groups: " + reason, dropped)
        if (tokens := counts.untrained_rows[NO_TOP_K]) and not self._told_no_top_k:
            self._told_no_top_k = True
            logger.warning("%d marked tokens are not trained (%s): %s", tokens, NO_TOP_K, FIXES[NO_TOP_K])

    def _leave_out_untaught(self, counts: CollateCounts) -> None:
        self._untaught_batches += 1
        logger.warning("a batch without anything to learn from was left out")
        if self._untaught_batches == MOST_UNTAUGHT_BATCHES_IN_A_ROW:
            self._hopeless = no_target(self._untaught_batches, self.step, counts)

    def _leave_out(self, result: StepResult, groups: int, sequences: int) -> None:
        """Count a step that was not applied."""
        self._bad_steps += 1
        self.groups_dropped["not_finite"] += groups
        self._journal.write("dropped", reason="not_finite", sequences=sequences, groups=groups)
        logger.warning("step not applied: loss %s, gradient norm %s", result.loss, result.grad_norm)
        if self._bad_steps == MOST_BAD_STEPS_IN_A_ROW:
            self._hopeless = RunError(
                f"the loss or its gradient was not finite in {self._bad_steps} batches in a row",
                code="train.not_finite",
                where=f"after step {self.step}",
                got=f"loss {result.loss}, gradient norm {result.grad_norm}",
                fix="lower the learning rate, or look at the teacher's logprobs in these groups",
            )

    def _save_and_refresh(self) -> None:
        """Write the checkpoint that is due after this step, if any, and hand it to the student's server."""
        last = self.step == self._settings.total_steps
        refresh = self._sync is not None and (last or self.step % self._settings.refresh_every == 0)
        save = self._settings.save_every is not None and self.step % self._settings.save_every == 0
        if not (save or refresh or last):
            return
        directory = self._save()
        if self._sync is not None and refresh:
            self._sync.push(directory, self.step)
        loaded = self._sync.loaded if self._sync is not None else None
        self._checkpoints = prune_checkpoints(self._checkpoints, self._settings.keep_checkpoints, loaded)

    def _directory(self) -> Path:
        return checkpoint_directory(Path(self._settings.output_dir), self.step)

    def _save(self) -> Path:
        """Write a checkpoint of this step; returns its directory."""
        start = time.monotonic()
        directory = self._directory()
        facts = CheckpointFacts(self._trainer_id, self.step, self.settling.last_acked, self.settling.lost)
        save_checkpoint(self._student.model, self._source, directory, self._save_dtype, facts)
        self.settling.commit()
        self._checkpoints.append(directory)
        self._journal.write(
            "checkpoint", step=self.step, path=str(directory), seconds=time.monotonic() - start
        )
        return directory


def save_dtype(settings: TrainerSettings, student: StudentWithLoss) -> torch.dtype:
    """Type of the saved weights: the one asked for, or that of the forward arithmetic."""
    if settings.save_dtype == "auto":
        return student.autocast or torch.float32
    return torch.bfloat16 if settings.save_dtype == "bfloat16" else torch.float32

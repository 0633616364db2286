"""Entry point of ``atropos train``; imports torch only once the settings and the API are known to be good."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.config.interrupts import sigterm_as_interrupt
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import EXIT_OK, AtroposError
from atroposlib.journal import Journal
from atroposlib.trainer.checkpoint import CheckpointFacts, read_facts, refuse_used_directory
from atroposlib.trainer.client import Registered, TrainerClient
from atroposlib.trainer.files import open_files
from atroposlib.trainer.model_files import model_directory
from atroposlib.trainer.prefetch import BatchPrefetcher
from atroposlib.trainer.source import BatchSource
from atroposlib.trainer.weight_sync import StudentServer, WeightSync

if TYPE_CHECKING:
    from atroposlib.trainer.loop import TrainingRun

logger = logging.getLogger(__name__)

LONGEST_TRAINER_ID = 128


def run(settings: TrainerSettings) -> int:
    """Train to ``total_steps`` and return the exit code.

    Raises:
        UsageError: The model, the data, the device or the output directory cannot be used.
        ApiError: The trajectory API refused or was unreachable for too long.
        StudentError: The student's server did not take new weights.
        RunError: Loss or gradients were not finite, or batches had no target, several times in a row; or
            every environment left before the last step.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    source = model_directory(settings.model)
    refuse_used_directory(Path(settings.output_dir))
    journal = Journal(settings.journal_path)
    start = starting_point(settings, source)
    settings, batch_source = _open_source(settings, start)
    batches = BatchPrefetcher(batch_source, settings.poll_interval_s, settings.lease_s)
    with sigterm_as_interrupt():
        _train(settings, source, start, batches, journal)
    return EXIT_OK


def _open_source(settings: TrainerSettings, start: CheckpointFacts) -> tuple[TrainerSettings, BatchSource]:
    """Where batches come from, and the settings with the steps that they make."""
    if settings.data is not None:
        return open_files(settings, start)
    client = TrainerClient(settings.api_url, give_up_after_s=settings.api_timeout_s)
    client.info()
    registered = client.register(registration(settings, start.step), start.trainer_id, start.batch_id)
    _tell_what_went_before(client, start, registered)
    return settings, client


def starting_point(settings: TrainerSettings, source: Path) -> CheckpointFacts:
    """Where this run begins: at the checkpoint it goes on from, otherwise at step 0 without any batch."""
    trainer_id = settings.trainer_id or _name_of(Path(settings.output_dir))
    facts = read_facts(source)
    if facts is not None and facts.trainer_id == trainer_id:
        return facts
    if facts is not None:
        logger.info("the model is a checkpoint of trainer_id %s: a new run begins at it", facts.trainer_id)
    return CheckpointFacts(trainer_id, step=0, batch_id=None)


def _name_of(output_dir: Path) -> str:
    """The directory's absolute path, with a hash for the front of one that is too long for a name."""
    name = str(output_dir.expanduser().absolute())
    if len(name) <= LONGEST_TRAINER_ID:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{digest}{name[len(digest) - LONGEST_TRAINER_ID :]}"


def registration(settings: TrainerSettings, starting_step: int) -> dict[str, Any]:
    """Body of Atropos's POST /register."""
    lag = {} if settings.max_policy_lag is None else {"max_policy_lag": settings.max_policy_lag}
    return {
        "wandb_group": settings.wandb_group,
        "wandb_project": settings.wandb_project,
        "batch_size": settings.batch_size,
        "max_token_len": settings.max_token_len,
        "checkpoint_dir": settings.output_dir,
        "save_checkpoint_interval": settings.save_every or settings.total_steps,
        "starting_step": starting_step,
        "num_steps": settings.total_steps,
        **lag,
    }


def _tell_what_went_before(client: TrainerClient, start: CheckpointFacts, registered: Registered) -> None:
    """Tell of batches that come again, and of an API that goes on counting a run that is not ours."""
    if registered.replayed:
        logger.info("%d batches that are in no checkpoint come again", registered.replayed)
    if registered.step > start.step + registered.replayed:
        logger.warning(
            "the API at %s is at step %d of an earlier run with equal settings, "
            "so environments may end early: reset it, or train into another output_dir",
            client.url,
            registered.step,
        )


def _train(
    settings: TrainerSettings,
    source: Path,
    start: CheckpointFacts,
    batches: BatchPrefetcher,
    journal: Journal,
) -> None:
    """Run to the end and write the journal's last line, whatever the end is."""
    # Environments start with the first question for a batch, so it is asked before the model loads.
    batches.request()
    sync = _weight_sync(settings, journal)
    training: TrainingRun | None = None
    reason = "failed"
    try:
        training = _training_run(settings, source, start, batches, sync, journal)
        training.run()
        reason = "finished"
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    except AtroposError as error:
        reason = error.code
        raise
    finally:
        prefetched = batches.close()
        if sync is not None:
            sync.close()
        journal.write("end", reason=reason, **_totals(training, prefetched))


def _totals(training: TrainingRun | None, prefetched: int) -> dict[str, Any]:
    """Where every group went that the API handed over: trained, dropped by reason, or unused."""
    if training is None:
        return {"groups_trained": 0, "groups_dropped": {}, "groups_unused": prefetched}
    interrupted = training.groups_taken - training.groups_trained - training.groups_dropped.total()
    return {
        "step": training.step,
        "leases_lost": training.settling.leases_lost,
        "groups_trained": training.groups_trained,
        "groups_dropped": dict(training.groups_dropped),
        "groups_unused": prefetched + interrupted,
    }


def _weight_sync(settings: TrainerSettings, journal: Journal) -> WeightSync | None:
    if settings.student_url is None:
        return None
    return WeightSync(StudentServer(settings.student_url, timeout_s=settings.refresh_timeout_s), journal)


def _training_run(
    settings: TrainerSettings,
    source: Path,
    start: CheckpointFacts,
    batches: BatchPrefetcher,
    sync: WeightSync | None,
    journal: Journal,
) -> TrainingRun:
    """Load torch and the student."""
    # A spinning OpenMP thread takes its core from the servers beside it; torch reads this when it loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    from atroposlib.trainer.loop import TrainingRun
    from atroposlib.trainer.student import load_student

    torch.manual_seed(settings.seed)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    if sync is not None:
        sync.check()
    student = load_student(source, settings)
    return TrainingRun(settings, source, start, student, batches, sync, journal)

"""Entry point of ``atropos train``; imports torch only once the settings and the API are known to be good."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.config.interrupts import sigterm_as_interrupt
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import EXIT_OK, AtroposError
from atroposlib.journal import Journal
from atroposlib.trainer.checkpoint import refuse_used_directory
from atroposlib.trainer.client import TrainerClient
from atroposlib.trainer.model_files import model_directory
from atroposlib.trainer.prefetch import BatchPrefetcher
from atroposlib.trainer.weight_sync import StudentServer, WeightSync

if TYPE_CHECKING:
    from atroposlib.trainer.loop import TrainingRun

logger = logging.getLogger(__name__)


def run(settings: TrainerSettings) -> int:
    """Train to ``total_steps`` and return the exit code.

    Raises:
        UsageError: The model, the device or the output directory cannot be used.
        ApiError: The trajectory API refused or was unreachable for too long.
        StudentError: The student's server did not take new weights.
        RunError: Loss or gradients were not finite, or batches had no target, several times in a row; or
            every environment left before the last step.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    source = model_directory(settings.model)
    refuse_used_directory(Path(settings.output_dir))
    journal = Journal(settings.journal_path)
    client = TrainerClient(settings.api_url, give_up_after_s=settings.api_timeout_s)
    client.info()
    client.register(registration(settings))
    _warn_of_a_step_taken_before(client)
    batches = BatchPrefetcher(client, settings.poll_interval_s)
    with sigterm_as_interrupt():
        _train(settings, source, batches, journal)
    return EXIT_OK


def registration(settings: TrainerSettings) -> dict[str, Any]:
    """Body of Atropos's POST /register."""
    return {
        "wandb_group": settings.wandb_group,
        "wandb_project": settings.wandb_project,
        "batch_size": settings.batch_size,
        "max_token_len": settings.max_token_len,
        "checkpoint_dir": settings.output_dir,
        "save_checkpoint_interval": settings.save_every or settings.total_steps,
        "starting_step": 0,
        "num_steps": settings.total_steps,
    }


def _warn_of_a_step_taken_before(client: TrainerClient) -> None:
    """Tell of an API that goes on counting an earlier run, as it must for ranks that register alike."""
    reached = client.current_step()
    if reached > client.step:
        logger.warning(
            "the API at %s is at step %d of an earlier run with equal settings, "
            "so environments may end early: restart it, or train into another output_dir",
            client.url,
            reached,
        )


def _train(settings: TrainerSettings, source: Path, batches: BatchPrefetcher, journal: Journal) -> None:
    """Run to the end and write the journal's last line, whatever the end is."""
    # Environments start with the first question for a batch, so it is asked before the model loads.
    batches.request()
    sync = _weight_sync(settings, journal)
    training: TrainingRun | None = None
    reason = "failed"
    try:
        training = _training_run(settings, source, batches, sync, journal)
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
        return {"step": 0, "groups_trained": 0, "groups_dropped": {}, "groups_unused": prefetched}
    interrupted = training.groups_taken - training.groups_trained - training.groups_dropped.total()
    return {
        "step": training.step,
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
    return TrainingRun(settings, source, load_student(source, settings), batches, sync, journal)

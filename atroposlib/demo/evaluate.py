"""The evaluator process: measures the held-out KL of the student's checkpoints and shows its texts.

It is a process of its own so that what judges the student is not what trains it: it alone opens the teacher's
weights, and reads of the trainer nothing but which checkpoints there are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atroposlib.config.demo import EvaluatorSettings
from atroposlib.errors import AtroposError
from atroposlib.journal import Journal, read_journal

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

POLL_S = 0.5


class Evaluator:
    """Holds what stays the same over a run: prompts, the teacher's texts and its log-probabilities."""

    def __init__(self, settings: EvaluatorSettings) -> None:
        from transformers import AutoTokenizer

        from atroposlib.demo import heldout

        self._settings = settings
        self._journal = Journal(settings.journal_path)
        self._device = _device(settings.device)
        self._tokenizer = AutoTokenizer.from_pretrained(settings.student, local_files_only=True)
        self._prompts = [heldout.encode(self._tokenizer, messages) for messages in settings.prompts]
        teacher = heldout.load_model(settings.teacher, self._device)
        continuations = heldout.continue_prompts(
            teacher, self._prompts, settings.max_completion_tokens, seed=settings.seed
        )
        self._texts = list(map(heldout.Text, self._prompts, continuations))
        self._teacher_logprobs = [heldout.logprobs(teacher, text) for text in self._texts]
        self._write_samples(teacher, "teacher", step=0)

    def evaluate(self, directory: Path, step: int, *, samples: bool) -> None:
        """Journal the KL of one student, and its completions when asked to."""
        from atroposlib.demo import heldout

        start = time.time()
        student = heldout.load_model(directory, self._device)
        kl = heldout.mean_kl(self._teacher_logprobs, student, self._texts)
        self._journal.write("eval", start=start, step=step, kl=kl.nats_per_token, tokens=kl.tokens)
        if samples:
            self._write_samples(student, "student", step=step)

    def _write_samples(self, model: PreTrainedModel, role: str, step: int) -> None:
        from atroposlib.demo import heldout

        shown = self._settings.sample_prompts
        if shown == 0:
            return
        completions = heldout.continue_prompts(
            model, self._prompts[:shown], self._settings.max_completion_tokens, seed=None
        )
        for index, ids in enumerate(completions):
            messages = self._settings.prompts[index]
            text = self._tokenizer.decode(ids, skip_special_tokens=True)
            self._journal.write("sample", role=role, step=step, index=index, messages=messages, text=text)


def due_checkpoints(settings: EvaluatorSettings) -> Iterator[tuple[int, Path]]:
    """Wait for, and yield, the checkpoints to evaluate; ends after that of the last step.

    A checkpoint is due every ``every`` steps; when the trainer is ahead, the newest stands for those missed.
    """
    done = 0
    while done < settings.steps:
        due = min(done - done % settings.every + settings.every, settings.steps)
        newest = latest_checkpoint(read_journal(settings.checkpoints))
        if newest is None or newest[0] < due:
            time.sleep(POLL_S)
            continue
        if not newest[1].is_dir():
            # A faster trainer has pruned it since; its successor is in the journal, or will be.
            time.sleep(POLL_S)
            continue
        done = newest[0]
        yield newest


def latest_checkpoint(events: list[dict[str, Any]]) -> tuple[int, Path] | None:
    """Step and directory of the newest checkpoint in a trainer's journal."""
    found = [(int(event["step"]), Path(event["path"])) for event in events if event["kind"] == "checkpoint"]
    return max(found, default=None)


def run(settings: EvaluatorSettings) -> None:
    """Evaluate the start, the checkpoints that are due, and the end."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    torch.set_num_threads(settings.threads)
    evaluator = Evaluator(settings)
    evaluator.evaluate(settings.student, 0, samples=True)
    for step, directory in due_checkpoints(settings):
        evaluator.evaluate(directory, step, samples=step == settings.steps)


def main(argv: list[str] | None = None) -> int:
    """Run by the demo with one file of settings."""
    parser = argparse.ArgumentParser(prog="python -m atroposlib.demo.evaluate", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file of EvaluatorSettings")
    file: Path = parser.parse_args(argv).config
    try:
        run(EvaluatorSettings.model_validate_json(file.read_text(encoding="utf-8")))
    except AtroposError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _device(name: str) -> torch.device:
    import torch

    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    sys.exit(main())

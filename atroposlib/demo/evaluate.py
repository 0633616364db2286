"""The evaluator process: measures the held-out distance of the student's checkpoints and shows its texts.

It is a process of its own so that what judges the student is not what trains it: it alone opens the teacher's
weights, and reads of the trainer nothing but which checkpoints there are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from atroposlib.config.demo import EvaluatorSettings
from atroposlib.errors import AtroposError
from atroposlib.journal import Journal, read_journal

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

POLL_S = 0.5


class Measure(Protocol):
    """Compares students with the teacher on its texts."""

    def of(self, student: PreTrainedModel) -> dict[str, Any]:
        """The members of a student's ``eval`` event; ``kl`` in nats is one of them."""


@dataclass(frozen=True, slots=True)
class Side:
    """A model's tokenizer, and the prompts in its ids."""

    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[list[int]]


class Evaluator:
    """Holds what stays the same over a run: prompts, the teacher's texts and what it says of them."""

    def __init__(self, settings: EvaluatorSettings) -> None:
        from transformers import AutoTokenizer

        from atroposlib.demo import heldout

        self._settings = settings
        self._journal = Journal(settings.journal_path)
        self._device = _device(settings.device)
        tokenizer = AutoTokenizer.from_pretrained(settings.student, local_files_only=True)
        teacher = heldout.load_model(settings.teacher, self._device)
        compared = _same if settings.same_tokenizer else _across
        self._student_side, teacher_side, self._measure = compared(settings, tokenizer, teacher)
        self._write_samples(teacher, teacher_side, "teacher", step=0)

    def evaluate(self, directory: Path, step: int, *, samples: bool) -> None:
        """Journal the distance of one student to its teacher, and its completions when asked to."""
        from atroposlib.demo import heldout

        start = time.time()
        student = heldout.load_model(directory, self._device)
        self._journal.write("eval", start=start, step=step, **self._measure.of(student))
        if samples:
            self._write_samples(student, self._student_side, "student", step=step)

    def _write_samples(self, model: PreTrainedModel, side: Side, role: str, step: int) -> None:
        from atroposlib.demo import heldout

        shown = self._settings.sample_prompts
        if shown == 0:
            return
        completions = heldout.continue_prompts(
            model, side.prompts[:shown], self._settings.max_completion_tokens, seed=None
        )
        for index, ids in enumerate(completions):
            messages = self._settings.prompts[index]
            text = side.tokenizer.decode(ids, skip_special_tokens=True)
            self._journal.write("sample", role=role, step=step, index=index, messages=messages, text=text)


def _same(
    settings: EvaluatorSettings, tokenizer: PreTrainedTokenizerBase, teacher: PreTrainedModel
) -> tuple[Side, Side, Measure]:
    """The sides and the measure of two models with one tokenizer."""
    from atroposlib.demo import heldout

    prompts = [heldout.encode(tokenizer, messages) for messages in settings.prompts]
    continuations = heldout.continue_prompts(
        teacher, prompts, settings.max_completion_tokens, seed=settings.seed
    )
    texts = list(map(heldout.Text, prompts, continuations))
    side = Side(tokenizer, prompts)
    return side, side, heldout.SameVocabulary(teacher, texts)


def _across(
    settings: EvaluatorSettings, tokenizer: PreTrainedTokenizerBase, teacher: PreTrainedModel
) -> tuple[Side, Side, Measure]:
    """The sides and the measure of two models with different tokenizers."""
    from transformers import PreTrainedTokenizerFast

    from atroposlib.collate.across.pair import TokenizerPair
    from atroposlib.demo.heldout_across import AcrossVocabularies
    from atroposlib.demo.paired_texts import PairedReader

    theirs = PreTrainedTokenizerFast.from_pretrained(settings.teacher, local_files_only=True)
    reader = PairedReader(tokenizer, theirs, settings.prompts)
    texts = reader.written_by(teacher, settings.max_completion_tokens, seed=settings.seed)
    pair = TokenizerPair.load(settings.student, settings.teacher)
    measure = AcrossVocabularies(teacher, pair, texts)
    return Side(tokenizer, reader.student_prompts), Side(theirs, reader.teacher_prompts), measure


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

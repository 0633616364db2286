"""Saves the student as a directory that vLLM, transformers and the model server can load. Needs no torch."""

from __future__ import annotations

import copy
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from atroposlib.errors import UsageError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.model",
    "generation_config.json",
)
"""Copied byte for byte: a tokenizer that is loaded and saved again can come out as another one."""


FACTS_FILE = "atropos.json"


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """What a checkpoint says of the run that wrote it.

    Attributes:
        trainer_id: The trainer.
        step: Optimizer steps in these weights.
        batch_id: The last batch in them whose ack the API took, None when no API told one.
        lost: Batches in them whose ack came too late, so that they may come again.
    """

    trainer_id: str
    step: int
    batch_id: str | None
    lost: list[str] = field(default_factory=list)


def checkpoint_directory(output_dir: Path, step: int) -> Path:
    """Where the weights after ``step`` optimizer steps are saved."""
    return output_dir / f"step-{step}"


def refuse_used_directory(output_dir: Path) -> None:
    """Raise UsageError when ``output_dir`` holds the checkpoints of an earlier run, which would be mixed."""
    found = next(output_dir.glob("step-*"), None)
    if found is not None:
        raise UsageError(
            "the directory holds checkpoints of an earlier run",
            code="usage.file",
            where="output_dir",
            got=str(found),
            fix=f"name another directory; to go on from a checkpoint, give it as model, and trainer_id as "
            f"its {FACTS_FILE} says",
        )


def read_facts(directory: Path) -> CheckpointFacts | None:
    """The facts of a checkpoint that this trainer wrote; None for any other model directory.

    Raises:
        UsageError: The file of the facts is damaged.
    """
    file = directory / FACTS_FILE
    if not file.is_file():
        return None
    try:
        return CheckpointFacts(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UsageError(
            "the file cannot be read",
            code="usage.file",
            where=str(file),
            got=error,
            fix="remove it to start from these weights as from any others",
        ) from error


def save_checkpoint(
    model: PreTrainedModel, source: Path, directory: Path, dtype: torch.dtype, facts: CheckpointFacts
) -> None:
    """Write safetensors weights, config, tokenizer and facts under a temporary name, then rename.

    Args:
        model: The model to save.
        source: Directory that the tokenizer's files are copied from.
        directory: Where the checkpoint stands afterwards, also after a power cut; whoever sees it sees all
            of it.
        dtype: Type of the saved weights.
        facts: What is in these weights.
    """
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished, state_dict=_converted(model.state_dict(), dtype))
    # save_pretrained writes the type of the live model into the config, not that of the weights given.
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.save_pretrained(unfinished)
    for pattern in TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copyfile(file, unfinished / file.name)
    (unfinished / FACTS_FILE).write_text(json.dumps(asdict(facts)) + "\n", encoding="utf-8")
    for file in (*unfinished.iterdir(), unfinished):
        _sync(file)
    unfinished.rename(directory)
    _sync(directory.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _converted(weights: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights as ``dtype``; tied ones stay one tensor, so that they are still stored once."""
    by_storage: dict[tuple[int, torch.Size], torch.Tensor] = {}
    for weight in weights.values():
        by_storage.setdefault((weight.data_ptr(), weight.shape), weight.to(dtype))
    return {name: by_storage[weight.data_ptr(), weight.shape] for name, weight in weights.items()}


def prune_checkpoints(written: list[Path], keep: int, loaded: Path | None) -> list[Path]:
    """Delete all but the newest ``keep`` of this run's checkpoints; returns those that are left.

    Args:
        written: Checkpoints of this run, oldest first.
        keep: How many stay.
        loaded: The one that a server loaded last, which always stays.
    """
    kept = [path for index, path in enumerate(written) if index >= len(written) - keep or path == loaded]
    for path in written:
        if path not in kept:
            shutil.rmtree(path)
    return kept

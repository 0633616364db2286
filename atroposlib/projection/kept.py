"""The quotient of two tokenizers, out of a file on disk when it was computed before."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from atroposlib.align.tables import cache
from atroposlib.align.tables.table import Vocabulary
from atroposlib.projection.quotient import Quotient, quotient
from atroposlib.projection.speller import Speller

logger = logging.getLogger(__name__)

FORMAT = 1
"""Raised whenever the same vocabularies would give another quotient, so that no older one is used."""


def kept_quotient(student: Any, teacher: Any, *, cache_dir: Path | None = None) -> Quotient:
    """The quotient of two tokenizers.

    Files are named by the fingerprints of the byte tables. Tokenizers with equal tables and other merges
    share one: which components there are is a choice, and any choice is the same for both sides.

    Args:
        student: A directory, a hub id, or a fast tokenizer of transformers.
        teacher: Likewise.
        cache_dir: Where they are kept; ``quotients`` in $ATROPOS_CACHE when omitted.

    Raises:
        ConfigError: A tokenizer's files cannot be read, or not as bytes.
    """
    spellers = Speller(student), Speller(teacher)
    vocabularies = spellers[0].vocabulary, spellers[1].vocabulary
    directory = cache.default_directory().with_name("quotients") if cache_dir is None else cache_dir
    names = "-".join(vocabulary.fingerprint for vocabulary in vocabularies)
    file = directory / f"{names}-{FORMAT}.safetensors"
    if (kept := _load(file, vocabularies)) is not None:
        return kept
    made = quotient(*spellers)
    _save(made, file)
    return made


def _load(file: Path, vocabularies: tuple[Vocabulary, Vocabulary]) -> Quotient | None:
    if not file.exists():
        return None
    try:
        arrays = load_file(file)
        found = Quotient(arrays["student"], arrays["teacher"])
        sides = (found.student, found.teacher)
        fits = all(
            side.dtype == np.int32 and side.shape == (len(vocabulary),)
            for side, vocabulary in zip(sides, vocabularies, strict=True)
        )
        if fits:
            return found
        reason = "its arrays do not fit the vocabularies"
    except (OSError, KeyError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}"
    logger.warning("%s is damaged and is built anew (%s)", file, reason)
    return None


def _save(made: Quotient, file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=".writing-") as scratch:
            written = Path(scratch, file.name)
            sides = {"student": made.student, "teacher": made.teacher}
            # The library writes an array's memory whatever its order.
            save_file({name: np.ascontiguousarray(side) for name, side in sides.items()}, written)
            written.replace(file)
    except OSError as error:
        # It only costs the computing next time.
        logger.warning("the quotient is not kept for the next time (%s)", error)

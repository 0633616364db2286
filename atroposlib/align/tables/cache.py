"""Keeps byte tables on disk by fingerprint, beside an index from the tokenizer's files to the fingerprint."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from atroposlib.align.tables.table import FORMAT, Vocabulary
from atroposlib.align.tables.tokenizer_file import Source

logger = logging.getLogger(__name__)

_ARRAYS = ("blob", "offsets", "kinds", "cuts")


def default_directory() -> Path:
    """Where tables are kept: ``vocabularies`` in $ATROPOS_CACHE, or in ~/.cache/atroposlib."""
    return Path(os.environ.get("ATROPOS_CACHE") or "~/.cache/atroposlib").expanduser() / "vocabularies"


def load(fingerprint: str, directory: Path) -> Vocabulary | None:
    """The table with this fingerprint; None when it is not here, or no longer whole (which is logged)."""
    file = _table_file(fingerprint, directory)
    if not file.exists():
        return None
    try:
        with file.open("rb") as handle, np.load(handle, allow_pickle=False) as stored:
            facts = json.loads(stored["facts"].tobytes())
            arrays = {name: stored[name] for name in _ARRAYS}
        names = {int(number): name for number, name in facts.pop("names").items()}
        vocabulary = Vocabulary(**arrays, **facts | {"names": names, "lossy": tuple(facts["lossy"])})
        if vocabulary.fingerprint == fingerprint:
            return vocabulary
        reason = f"its content has fingerprint {vocabulary.fingerprint}"
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        reason = f"{type(error).__name__}: {error}"
    logger.warning("%s is damaged and is built anew (%s)", file, reason)
    return None


def load_for(source: Source, directory: Path) -> Vocabulary | None:
    """The table that was built from these very files, wherever they lay; None when there is none."""
    try:
        fingerprint = _index_file(source, directory).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("the index of byte tables cannot be read, so one is built anew (%s)", error)
        return None
    return load(fingerprint, directory) if fingerprint.isalnum() else None


def save(vocabulary: Vocabulary, source: Source, directory: Path) -> None:
    """Keep a table; a place that cannot be written only costs the building next time, so it is logged."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".writing-") as scratch:
            table, index = Path(scratch, "table.npz"), Path(scratch, "index")
            facts = np.frombuffer(json.dumps(vocabulary.facts()).encode(), dtype=np.uint8)
            np.savez(table, facts=facts, **{name: getattr(vocabulary, name) for name in _ARRAYS})
            index.write_text(vocabulary.fingerprint, encoding="ascii")
            # The index last: what it names is there.
            table.replace(_table_file(vocabulary.fingerprint, directory))
            index.replace(_index_file(source, directory))
    except OSError as error:
        logger.warning("the byte table is not kept for the next time (%s)", error)


def _table_file(fingerprint: str, directory: Path) -> Path:
    return directory / f"{fingerprint}.npz"


def _index_file(source: Source, directory: Path) -> Path:
    digest = hashlib.sha256(f"{FORMAT} {len(source.tokenizer)} ".encode())
    digest.update(source.tokenizer)
    digest.update(source.config)
    return directory / f"{digest.hexdigest()[:32]}.source"

"""From a Hugging Face fast tokenizer's files to the table id -> bytes, without loading the tokenizer."""

from __future__ import annotations

from pathlib import Path

from atroposlib.align import cache
from atroposlib.align.building import build
from atroposlib.align.table import SPECIAL, TEXT, UNUSED, Vocabulary
from atroposlib.align.tokenizer_file import parse, read_source

__all__ = ["SPECIAL", "TEXT", "UNUSED", "Vocabulary", "read_vocabulary"]


def read_vocabulary(path: str | Path, *, cache_dir: Path | None = None) -> Vocabulary:
    """The byte table of a tokenizer, out of the cache when these files were read before.

    Args:
        path: Directory with tokenizer.json and, for the roles of special tokens, tokenizer_config.json.
        cache_dir: Where tables are kept; ``vocabularies`` in $ATROPOS_CACHE when omitted.

    Raises:
        ConfigError: There is no tokenizer.json (``usage.file``), or a byte table cannot represent the
            tokenizer (``align.unsupported``).
    """
    source = read_source(Path(path).expanduser())
    directory = cache.default_directory() if cache_dir is None else cache_dir
    if (kept := cache.load_for(source, directory)) is not None:
        return kept
    vocabulary = build(*parse(source), source.where)
    cache.save(vocabulary, source, directory)
    return vocabulary

"""The byte table id -> bytes of whatever names a tokenizer: its files, a hub id, or what was loaded of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from atroposlib.align.tables import cache
from atroposlib.align.tables.building import build
from atroposlib.align.tables.table import SPECIAL, TEXT, UNUSED, Vocabulary
from atroposlib.align.tables.tokenizer_file import (
    CONFIG_FILE,
    TOKENIZER_FILE,
    Source,
    parse,
    read_source,
    unsupported,
)
from atroposlib.errors import ConfigError

__all__ = ["SPECIAL", "TEXT", "UNUSED", "Vocabulary", "named_path", "read_vocabulary", "vocabulary_of"]

logger = logging.getLogger(__name__)

_ROLE_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


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
    return _table(source, cache.default_directory() if cache_dir is None else cache_dir)


def _table(source: Source, directory: Path) -> Vocabulary:
    if (kept := cache.load_for(source, directory)) is not None:
        return kept
    vocabulary = build(*parse(source), source.where)
    cache.save(vocabulary, source, directory)
    return vocabulary


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The byte table of a tokenizer, out of the cache when it was read before.

    Args:
        tokenizer: A :class:`Vocabulary`, a directory, an id of the Hugging Face hub, or a fast tokenizer of
            transformers.

    Raises:
        ConfigError: A slow tokenizer, or one that a byte table cannot represent (``align.unsupported``); a
            directory without a tokenizer (``usage.file``), or no such tokenizer on the hub (``usage.model``).
    """
    if isinstance(tokenizer, Vocabulary):
        return tokenizer
    if isinstance(tokenizer, str | Path):
        return read_vocabulary(named_path(tokenizer))
    return _table(_loaded(tokenizer), cache.default_directory())


def named_path(name: str | Path) -> Path:
    """Where the files of a named tokenizer lie: a directory, or what the hub gave for an id.

    Raises:
        ConfigError: There is no such tokenizer on the hub, or the hub is out of reach (``usage.model``).
    """
    return _from_hub(name) if isinstance(name, str) and _is_hub_id(name) else Path(name)


def _is_hub_id(name: str) -> bool:
    return not (name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).exists())


def _from_hub(name: str) -> Path:
    """The tokenizer.json of a hub id, fetched or as it was fetched before, beside its configuration."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        file = hf_hub_download(name, TOKENIZER_FILE)
        try:
            hf_hub_download(name, CONFIG_FILE)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            # Not out of reach but not there: it is only for the roles of special tokens.
            logger.info("%s has no %s on the hub", name, CONFIG_FILE)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ConfigError(
            "no such directory, and the hub gives no fast tokenizer of this name",
            code="usage.model",
            where="tokenizer",
            got=name,
            expected=f"a directory, or a hub id with {TOKENIZER_FILE}",
            fix="check the name and the connection",
        ) from error
    return Path(file)


def _loaded(tokenizer: Any) -> Source:
    """What the two files of a loaded tokenizer would be."""
    where = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise unsupported(
            "a slow tokenizer cannot be read", where, type(tokenizer).__name__, "a fast tokenizer"
        )
    config: dict[str, Any] = {
        role: str(token) for role in _ROLE_TOKENS if (token := getattr(tokenizer, role, None)) is not None
    }
    config["additional_special_tokens"] = [str(one) for one in tokenizer.all_special_tokens]
    template = getattr(tokenizer, "chat_template", None)
    if template is not None:
        config["chat_template"] = (
            template
            if isinstance(template, str)
            else [{"name": name, "template": text} for name, text in template.items()]
        )
    return Source(backend.to_str().encode(), json.dumps(config, sort_keys=True).encode(), where)

"""Loads a teacher's tokenizer: from a hub id or directory, or out of what its server hands out."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from atroposlib.config.server import ServerBaseline
from atroposlib.envs.telling import first_line
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.errors import ConfigError
from atroposlib.teacher.persistence import persist
from atroposlib.teacher.tokenizer_files import TOKENIZER_PATH, fetch_files, keep
from atroposlib.teacher.transport import Peer

PATIENCE_SECONDS = 3.0
ANSWER_SECONDS = 60.0
HUB_SECONDS = 10.0


def tokenizer_name(config: ServerBaseline) -> str:
    """Hub id or directory of a server's tokenizer: ``model_name`` unless it is set."""
    named = getattr(config, "tokenizer_name", "none")
    return config.model_name if named in ("", "none") else named


def read_as_written(name: str) -> Any:
    """The tokenizer of a hub id or directory exactly as its tokenizer.json says.

    AutoTokenizer rebuilds some tokenizers from their declared class and then gives other ids.

    Raises:
        OSError: There is none.
        ValueError: It cannot be read.
    """
    _require_in_reach(name)
    try:
        return _read_fast(name)
    except ValueError:
        # Without a tokenizer.json only the declared class can make a tokenizer of the other files.
        return read_tokenizer(name)


def _require_in_reach(name: str) -> None:
    """Refuse at once what is no directory and nothing that the hub or its cache has.

    Transformers would ask a hub out of reach for minutes, file by file.

    Raises:
        OSError: It is none of these, or the hub is out of reach.
    """
    if Path(name).exists():
        return
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        files = ("tokenizer.json", "tokenizer_config.json")
        if not any(isinstance(try_to_load_from_cache(name, file), str) for file in files):
            HfApi().model_info(name, timeout=HUB_SECONDS)
    except Exception as error:
        # Whatever the hub's HTTP client raises, or a name that can be none of its ids.
        raise OSError(f"no such directory, and not had from the hub: {first_line(error)}") from error


def _read_fast(name: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(name)
    except Exception as error:
        # The libraries raise whatever they stumble over, tokenizers a bare Exception.
        raise ValueError(f"{type(error).__name__}: {first_line(error)}") from error


async def served_tokenizer(session: aiohttp.ClientSession, peer: Peer) -> Any:
    """The tokenizer that a server hands out; None where it has no such route.

    Raises:
        AtroposError: The party's error for a refusal, or for no answer.
        ConfigError: What it hands out cannot be loaded or kept.
    """
    quick = replace(peer, timeout_s=min(peer.timeout_s, ANSWER_SECONDS))
    files = await persist(lambda: fetch_files(session, quick), patience_s=PATIENCE_SECONDS)
    if files is None:
        return None
    try:
        return await asyncio.to_thread(lambda: _read_fast(str(keep(files))))
    except (OSError, ValueError) as error:
        raise unloadable(peer.root + TOKENIZER_PATH, peer.root, error) from error


def unloadable(where: str, name: str, error: Exception) -> ConfigError:
    """The refusal of a teacher's tokenizer that cannot be loaded."""
    return ConfigError(
        "the teacher's tokenizer cannot be loaded, so it cannot be compared with the student's",
        where=where,
        got=f"{name!r}: {first_line(error)}",
        fix="give a hub id or directory, the student's if they are the same; unset it is model_name",
    )

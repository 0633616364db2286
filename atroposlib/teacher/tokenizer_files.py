"""The route on which a server hands out its tokenizer's files, and the client that keeps them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import aiohttp
import msgspec

from atroposlib.align.tables import cache
from atroposlib.teacher.transport import Peer, bad_reply, decode, refused, send

TOKENIZER_PATH = "/v1/atropos/tokenizer"

MOST_BYTES = 256 << 20
"""An answer that is longer is refused while it is read; the largest tokenizers are some 35 MB."""

_NAMES = {
    "tokenizer": "tokenizer.json",
    "config": "tokenizer_config.json",
    "chat_template": "chat_template.jinja",
}
_NO_ROUTE = frozenset({403, 404, 405, 501})


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a fast tokenizer.

    Attributes:
        tokenizer: Text of tokenizer.json.
        config: Text of tokenizer_config.json, None where there is none.
        chat_template: Text of chat_template.jinja, None where the template stands in the configuration.
    """

    tokenizer: str
    config: str | None = None
    chat_template: str | None = None

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of all of it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


def read_files(source: str, revision: str | None = None) -> TokenizerFiles | None:
    """The files of a directory or hub id; None where there is no tokenizer.json.

    Args:
        source: What the tokenizer was loaded from.
        revision: Of the hub's repository.
    """
    texts = {field: _text(source, name, revision) for field, name in _NAMES.items()}
    if texts["tokenizer"] is None:
        return None
    return TokenizerFiles(
        tokenizer=texts["tokenizer"], config=texts["config"], chat_template=texts["chat_template"]
    )


def _text(source: str, name: str, revision: str | None) -> str | None:
    if Path(source).is_dir():
        file = Path(source, name)
        return file.read_text(encoding="utf-8") if file.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(source, name, revision=revision)).read_text(encoding="utf-8")
    except (EntryNotFoundError, HfHubHTTPError, HFValidationError, OSError):
        # Not in the repository, or out of reach, and then this server could not load it either.
        return None


async def fetch_files(session: aiohttp.ClientSession, peer: Peer) -> TokenizerFiles | None:
    """The tokenizer that a server hands out; None where it has no such route.

    Raises:
        Passing: Another try may succeed.
        AtroposError: The party's error for a refusal, for no answer, or for one that is no tokenizer.
    """
    answer = await send(session, peer, TOKENIZER_PATH, limit=MOST_BYTES)
    if answer.status in _NO_ROUTE:
        return None
    if answer.status != 200:
        raise refused(peer, TOKENIZER_PATH, answer, {})
    return await decode(answer.content, peer, lambda reply: _files(reply, peer))


def _files(reply: object, peer: Peer) -> TokenizerFiles:
    try:
        return msgspec.convert(reply, TokenizerFiles)
    except msgspec.ValidationError as error:
        raise bad_reply(peer, f"{TOKENIZER_PATH} answers no tokenizer", got=str(error)) from error


def keep(files: TokenizerFiles, directory: Path | None = None) -> Path:
    """Write the files where a tokenizer is loaded from; the same files go to the same directory.

    Args:
        files: What a server handed out.
        directory: Where such tokenizers are kept; ``served_tokenizers`` beside the byte tables when omitted.

    Raises:
        OSError: The directory cannot be written.
    """
    kept = cache.default_directory().with_name("served_tokenizers") if directory is None else directory
    place = kept / files.digest
    if place.is_dir():
        return place
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept, prefix=".writing-") as scratch:
        whole = Path(scratch, "whole")
        whole.mkdir()
        for field, name in _NAMES.items():
            if (text := getattr(files, field)) is not None:
                (whole / name).write_text(text, encoding="utf-8")
        try:
            os.rename(whole, place)
        except OSError:
            # Another process has put the same files there meanwhile.
            if not place.is_dir():
                raise
    return place

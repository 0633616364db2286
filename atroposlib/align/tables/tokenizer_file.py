"""Reads the parts of tokenizer.json and tokenizer_config.json that say what the ids stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from atroposlib.errors import ConfigError

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
MODEL_TYPES = ("BPE", "Unigram", "WordPiece", "WordLevel")

Part = dict[str, Any]
"""A normalizer, pre-tokenizer or decoder as tokenizer.json writes it: ``type`` and its settings."""


class AddedToken(msgspec.Struct):
    """A token that is looked for in the text before the model sees it."""

    id: int
    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False


class Model(msgspec.Struct):
    """The vocabulary, and the settings that say how its pieces are written. Merges are not read."""

    vocab: dict[str, int] | list[tuple[str, float]]
    # The oldest files name no type.
    type: str | None = None
    unk_token: str | None = None
    unk_id: int | None = None
    byte_fallback: bool | None = False
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None

    def pieces(self) -> dict[str, int]:
        """Every piece with its id."""
        if isinstance(self.vocab, dict):
            return self.vocab
        return {piece: number for number, (piece, _) in enumerate(self.vocab)}

    def unknown_id(self) -> int | None:
        """Id that stands for what has no token."""
        if self.unk_id is not None or self.unk_token is None:
            return self.unk_id
        return self.pieces().get(self.unk_token)


class TokenizerFile(msgspec.Struct):
    """What is read of tokenizer.json."""

    model: Model
    added_tokens: list[AddedToken] = []
    normalizer: Part | None = None
    pre_tokenizer: Part | None = None
    decoder: Part | None = None


class _ConfiguredToken(msgspec.Struct):
    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False


_Written = str | _ConfiguredToken


class TokenizerConfig(msgspec.Struct):
    """What is read of tokenizer_config.json."""

    bos_token: _Written | None = None
    eos_token: _Written | None = None
    pad_token: _Written | None = None
    unk_token: _Written | None = None
    additional_special_tokens: list[_Written] | None = None
    extra_special_tokens: list[_Written] | dict[str, _Written] | None = None
    added_tokens_decoder: dict[str, _ConfiguredToken] | None = None
    chat_template: str | list[dict[str, str]] | None = None

    def named(self, role: str) -> str | None:
        """The token that the configuration names for ``bos``, ``eos``, ``pad`` or ``unk``."""
        written = getattr(self, f"{role}_token")
        return written.content if isinstance(written, _ConfiguredToken) else written

    def special_names(self) -> set[str]:
        """Every token that the configuration makes a special one."""
        extra = self.extra_special_tokens or []
        listed = [
            *(self.additional_special_tokens or []),
            *(extra.values() if isinstance(extra, dict) else extra),
        ]
        names = {token if isinstance(token, str) else token.content for token in listed}
        names |= {token.content for token in (self.added_tokens_decoder or {}).values() if token.special}
        return names | {name for role in ("bos", "eos", "pad", "unk") if (name := self.named(role))}

    def template(self) -> str:
        """The text of the chat templates; empty when there is none."""
        if isinstance(self.chat_template, list):
            return "\n".join(entry.get("template", "") for entry in self.chat_template)
        return self.chat_template or ""


@dataclass(frozen=True, slots=True)
class Source:
    """The two files as they lie on disk.

    Attributes:
        tokenizer: Bytes of tokenizer.json.
        config: Bytes of tokenizer_config.json; ``{}`` where there is none.
        where: The file that errors name.
    """

    tokenizer: bytes
    config: bytes
    where: str


def read_source(path: Path) -> Source:
    """Read the two files of a tokenizer's directory, or of the directory that a tokenizer.json is in.

    Raises:
        ConfigError: There is no tokenizer.json, or a file cannot be read (``usage.file``).
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    config = file.with_name(CONFIG_FILE)
    try:
        return Source(file.read_bytes(), config.read_bytes() if config.exists() else b"{}", str(file))
    except OSError as error:
        raise ConfigError(
            "the tokenizer cannot be read",
            code="usage.file",
            where=str(error.filename or file),
            got=error.strerror,
            expected=f"a directory with {TOKENIZER_FILE}, which every fast tokenizer has",
        ) from error


def parse(source: Source) -> tuple[TokenizerFile, TokenizerConfig]:
    """Both files, checked for types; the added tokens that only the configuration lists are among the others.

    Raises:
        ConfigError: A file is not of the form that the library writes, or its ids contradict each other.
    """
    try:
        file = msgspec.json.decode(source.tokenizer, type=TokenizerFile)
        config = msgspec.json.decode(source.config, type=TokenizerConfig)
    except msgspec.MsgspecError as error:
        raise unsupported(
            f"the tokenizer's files cannot be parsed: {error}", source.where, "other JSON"
        ) from error
    if file.model.type not in (None, *MODEL_TYPES):
        raise unsupported(
            "a tokenizer of an unknown kind", f"{source.where}#model", file.model.type, MODEL_TYPES
        )
    _add_configured(file, config, source.where)
    _check_ids(file, source.where)
    return file, config


def _add_configured(file: TokenizerFile, config: TokenizerConfig, where: str) -> None:
    known = {token.id for token in file.added_tokens}
    for written_id, token in (config.added_tokens_decoder or {}).items():
        if not written_id.isdecimal():
            raise unsupported("an added token without a number", f"{where}: {CONFIG_FILE}", repr(written_id))
        if int(written_id) not in known:
            fields = msgspec.structs.asdict(token)
            file.added_tokens.append(AddedToken(id=int(written_id), **fields))


def _check_ids(file: TokenizerFile, where: str) -> None:
    pieces = file.model.pieces()
    if not pieces:
        raise unsupported("a tokenizer without a vocabulary", f"{where}#model.vocab", "no piece")
    if not isinstance(file.model.vocab, dict) and len(pieces) != len(file.model.vocab):
        raise unsupported("a piece that stands in the vocabulary twice", f"{where}#model.vocab", "two ids")
    by_id = {number: piece for piece, number in pieces.items()}
    if len(by_id) != len(pieces):
        raise unsupported("two pieces with one id", f"{where}#model.vocab", "an id with two meanings")
    for token in file.added_tokens:
        standing = by_id.get(token.id, token.content)
        number = pieces.get(token.content, token.id)
        if standing != token.content or number != token.id:
            raise unsupported(
                "an added token and a piece of the vocabulary contradict each other",
                f"{where}#added_tokens",
                f"{token.content!r} with id {token.id}",
                f"{standing!r} there" if standing != token.content else f"id {number}",
            )


def unsupported(what: str, where: str, got: object, expected: object = None) -> ConfigError:
    """The refusal of a tokenizer, to be raised.

    Args:
        what: Why its ids cannot be read as bytes, without a full stop.
        where: Place in the tokenizer's files, such as ``tokenizer.json#decoder``.
        got: What stands there.
        expected: What could have been read.
    """
    return ConfigError(
        what,
        code="align.unsupported",
        where=where,
        got=got,
        expected=expected,
        fix="take a model with another tokenizer, or a teacher with the student's own",
    )

"""Builds the byte table from a tokenizer's parsed files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.decoders import BYTES, Decoder, byte_characters, make_decoder
from atroposlib.align.tables.roles import find_roles
from atroposlib.align.tables.steps import Steps, alphabet, read_steps
from atroposlib.align.tables.table import SPECIAL, TEXT, UNUSED, Vocabulary
from atroposlib.align.tables.tokenizer_file import (
    AddedToken,
    Model,
    TokenizerConfig,
    TokenizerFile,
    unsupported,
)

MOST_IDS = 1 << 24
"""Above this an id is taken for a damaged file; the largest vocabularies have some 262,000."""

# The bytes that UTF-8 uses.
_UTF8_BYTES = (*range(0xC0), *range(0xC2, 0xF5))


def build(file: TokenizerFile, config: TokenizerConfig, where: str) -> Vocabulary:
    """The table of a tokenizer.

    Args:
        file: Its tokenizer.json.
        config: Its tokenizer_config.json.
        where: The file that errors name.

    Raises:
        ConfigError: A byte table cannot represent the tokenizer (``align.unsupported``).
    """
    decoder = make_decoder(file.decoder, where)
    steps = read_steps(file, where)
    _check_agreement(file.model, decoder, steps, where)
    roles = find_roles(file, config)
    names = _special_names(file, config, roles.get("unk"))
    parts = _bytes_by_id(file, decoder, where)
    kinds = np.array([TEXT if part else UNUSED for part in parts], dtype=np.uint8)
    for number in names:
        parts[number] = b""
        kinds[number] = SPECIAL
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    lossy = steps.lossy | _decoder_losses(file.model, decoder)
    return Vocabulary(
        blob=np.frombuffer(b"".join(parts), dtype=np.uint8),
        offsets=offsets,
        kinds=kinds,
        cuts=_cuts(file.added_tokens, kinds, steps),
        # Words bring their space along, and the first has none.
        prefix=steps.prefix if decoder.word_prefix is None else "first",
        roles=roles,
        names=names,
        lossy=tuple(sorted(lossy)),
    )


def _check_agreement(model: Model, decoder: Decoder, steps: Steps, where: str) -> None:
    """Refuse where the decoder reads pieces in another way than they were written in."""
    if alphabet(steps) != decoder.alphabet:
        raise unsupported(
            "the decoder does not take back how spaces or bytes are written",
            f"{where}#decoder",
            decoder.alphabet,
            alphabet(steps),
        )
    if model.byte_fallback and not decoder.reads_byte_pieces:
        raise unsupported("byte pieces that the decoder does not read", f"{where}#decoder", "no ByteFallback")
    if model.end_of_word_suffix:
        raise unsupported(
            "pieces with a sign at the end of a word",
            f"{where}#model.end_of_word_suffix",
            model.end_of_word_suffix,
        )
    prefix = model.continuing_subword_prefix or None
    if prefix != decoder.word_prefix and model.type != "WordLevel":
        raise unsupported(
            "the decoder does not take back the prefix of pieces inside a word",
            f"{where}#model.continuing_subword_prefix",
            repr(prefix),
            repr(decoder.word_prefix),
        )


def _special_names(file: TokenizerFile, config: TokenizerConfig, unknown: int | None) -> dict[int, str]:
    """The markers: what either file calls special, and what stands for the unknown."""
    called = config.special_names()
    names = {
        token.id: token.content for token in file.added_tokens if token.special or token.content in called
    }
    pieces = file.model.pieces()
    names |= {pieces[name]: name for name in called if name in pieces}
    if unknown is not None and unknown not in names:
        names[unknown] = next(piece for piece, number in pieces.items() if number == unknown)
    return dict(sorted(names.items()))


def _bytes_by_id(file: TokenizerFile, decoder: Decoder, where: str) -> list[bytes]:
    pieces = file.model.pieces()
    numbers = [*pieces.values(), *(token.id for token in file.added_tokens)]
    if min(numbers) < 0 or max(numbers) >= MOST_IDS:
        raise unsupported(
            "ids out of all bounds", f"{where}#model.vocab", f"{min(numbers)} to {max(numbers)}"
        )
    parts = [b""] * (max(numbers) + 1)
    for piece, number in pieces.items():
        parts[number] = decoder.to_bytes(piece)
    for token in file.added_tokens:
        # Byte signs are for the model's own pieces: what only an added token matches is matched as it is.
        literal = decoder.alphabet == BYTES and token.content not in pieces
        parts[token.id] = token.content.encode() if literal else decoder.to_bytes(token.content)
    return parts


def _decoder_losses(model: Model, decoder: Decoder) -> set[str]:
    lost = set() if decoder.word_prefix is None else {"whitespace"}
    pieces = model.pieces()
    # BPE comes to a byte piece by its fallback alone; the other models find any piece that the text spells.
    if decoder.reads_byte_pieces and model.type not in (None, "BPE") and "<0x41>" in pieces:
        lost.add("byte_pieces")
    if decoder.alphabet == BYTES:
        characters = byte_characters()
        complete = all(characters[byte] in pieces for byte in _UTF8_BYTES)
    else:
        complete = bool(model.byte_fallback) and all(f"<0x{byte:02X}>" in pieces for byte in _UTF8_BYTES)
    return lost if complete else lost | {"unknown"}


def _cuts(added: list[AddedToken], kinds: npt.NDArray[np.uint8], steps: Steps) -> npt.NDArray[np.bool_]:
    # A special token is found before normalisation wherever it is added by its role alone.
    cuts: npt.NDArray[np.bool_] = kinds == SPECIAL
    for token in added:
        cuts[token.id] = steps.prefix_before_all_added or not token.normalized
    return cuts

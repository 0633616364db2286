"""What a tokenizer does to a text before its vocabulary sees it: the prefix it puts in, and what it loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from atroposlib.align.tables.decoders import BYTES, PLAIN
from atroposlib.align.tables.tokenizer_file import Part, TokenizerFile, unsupported

Prefix = Literal["none", "first", "always"]
"""Where a space is put before the text: nowhere, at its begin, or at its begin and behind added tokens."""

LOSSY: dict[str, str] = {
    "nfc": "Unicode composition (NFC).",
    "nfd": "Unicode decomposition (NFD).",
    "nfkc": "Unicode compatibility composition (NFKC).",
    "nfkd": "Unicode compatibility decomposition (NFKD).",
    "charsmap": "The normalisation map of a SentencePiece model, mostly NFKC with newlines made spaces.",
    "lowercase": "Capital letters.",
    "accents": "Accents.",
    "cleanup": "Control characters, and which kind of white space it was.",
    "strip": "White space at the ends of the text.",
    "replace": "A replacement that the decoder does not take back.",
    "whitespace": "White space between words, or whatever else a pre-tokenizer drops.",
    "unmatched": "What the pattern of a pre-tokenizer leaves out; most patterns leave out nothing.",
    "byte_pieces": "Text that is spelt like a byte piece, such as <0x0A>: it is read as that byte.",
    "space_sign": "The character that stands for a space, where the text itself has it.",
    "prefix": "A space that begins the text, or a part behind an added token: one is put there anyway.",
    "added_strip": "White space beside added tokens that swallow it.",
    "unknown": "Text that has no token.",
}
"""What a text can lose on its way into ids, by name."""

_NAMED = {"NFC": "nfc", "NFD": "nfd", "NFKC": "nfkc", "NFKD": "nfkd", "Precompiled": "charsmap"} | {
    "Lowercase": "lowercase",
    "StripAccents": "accents",
    "Nmt": "cleanup",
    "Strip": "strip",
}
_DROPPING = ("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts")
_KEEPING = ("Digits", "FixedLength", "Split", "Punctuation")


@dataclass(slots=True)
class Steps:
    """What happens to a text on its way to the vocabulary.

    Attributes:
        lossy: Names from :data:`LOSSY`.
        prefix: Where a space is put in.
        prefix_before_all_added: Whether that happens behind every added token, or only behind those that are
            found before normalisation.
        alphabets: How bytes or spaces are written in pieces
            (:class:`~atroposlib.align.tables.decoders.Decoder`).
    """

    lossy: set[str] = field(default_factory=set)
    prefix: Prefix = "none"
    prefix_before_all_added: bool = False
    alphabets: set[str] = field(default_factory=set)


def read_steps(file: TokenizerFile, where: str) -> Steps:
    """Everything that the normalizers, the pre-tokenizers and the added tokens do to a text.

    Raises:
        ConfigError: A part is of a kind that is not known, so that its effect is not either.
    """
    steps = Steps()
    for part in _flat(file.normalizer, "normalizers"):
        _normalizer(part, steps, f"{where}#normalizer")
    for part in _flat(file.pre_tokenizer, "pretokenizers"):
        _pre_tokenizer(part, steps, f"{where}#pre_tokenizer")
    if any(token.lstrip or token.rstrip for token in file.added_tokens):
        steps.lossy.add("added_strip")
    if steps.alphabets - {BYTES}:
        steps.lossy.add("space_sign")
    if len(steps.alphabets) > 1:
        raise unsupported("spaces are written in two ways", where, sorted(steps.alphabets))
    return steps


def alphabet(steps: Steps) -> str:
    """The one way in which bytes or spaces are written in pieces."""
    return next(iter(steps.alphabets), PLAIN)


def _flat(part: Part | None, members: str) -> Iterator[Part]:
    if part is None:
        return
    if part.get("type") != "Sequence":
        yield part
        return
    for member in part.get(members, []):
        yield from _flat(member, members)


def _normalizer(part: Part, steps: Steps, where: str) -> None:
    match part:
        case {"type": "Replace", "pattern": {"String": " "}, "content": str(sign)} if len(sign) == 1:
            steps.alphabets.add(sign)
        case {"type": "Replace"}:
            steps.lossy.add("replace")
        case {"type": "Prepend", "prepend": " " | "\u2581"}:
            steps.prefix = "always"
        case {"type": "ByteLevel"}:
            steps.alphabets.add(BYTES)
        case {"type": "BertNormalizer"}:
            steps.lossy |= _bert_losses(part)
        case {"type": str(kind)} if kind in _NAMED:
            steps.lossy.add(_NAMED[kind])
        case _:
            raise unsupported("a normalizer whose effect is not known", where, part.get("type"))


def _bert_losses(part: Part) -> set[str]:
    lower = bool(part.get("lowercase"))
    # Unset means: as the letters are.
    accents = lower if part.get("strip_accents") is None else bool(part["strip_accents"])
    told = {"cleanup": bool(part.get("clean_text")), "lowercase": lower, "accents": accents}
    return {name for name, happens in told.items() if happens}


def _pre_tokenizer(part: Part, steps: Steps, where: str) -> None:
    match part:
        case {"type": "ByteLevel"}:
            steps.alphabets.add(BYTES)
            if part.get("add_prefix_space"):
                _put_in(steps, "always")
        case {"type": "Metaspace", "replacement": str(sign)}:
            steps.alphabets.add(sign)
            # Older files have a flag where newer ones have a scheme.
            scheme = part.get("prepend_scheme") or (
                "always" if part.get("add_prefix_space", True) else "never"
            )
            if scheme != "never":
                _put_in(steps, "first" if scheme == "first" else "always")
        case {"type": "Split", "behavior": "Removed", "invert": True}:
            steps.lossy.add("unmatched")
        case {"type": str(kind)} if kind in _DROPPING or part.get("behavior") == "Removed":
            steps.lossy.add("whitespace")
        case {"type": str(kind)} if kind in _KEEPING:
            return
        case _:
            raise unsupported("a pre-tokenizer whose effect is not known", where, part.get("type"))


def _put_in(steps: Steps, prefix: Prefix) -> None:
    """A space put in only where there is none, so that nobody can tell afterwards."""
    steps.prefix = prefix
    steps.prefix_before_all_added = True
    steps.lossy.add("prefix")

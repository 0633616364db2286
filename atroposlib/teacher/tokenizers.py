"""Tells tokenizers apart: a fingerprint of one, and whether a teacher's ids can stand beside a student's.

Two tokenizers are compared by the bytes that their ids stand for. One without a byte table (a slow one, or
one of an unknown kind) is compared as its vocabulary spells the tokens, and is of use only where both agree.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, Protocol

from atroposlib.align import sameness
from atroposlib.align.vocabulary import vocabulary_of
from atroposlib.errors import ConfigError

FINGERPRINT_CHARACTERS = 32


class Tokenizer(Protocol):
    """What is asked of a tokenizer without a byte table; every Hugging Face tokenizer has it."""

    @property
    def bos_token_id(self) -> int | None:
        """Id that begins a text."""

    @property
    def eos_token_id(self) -> int | None:
        """Id that ends a text or a turn."""

    @property
    def pad_token_id(self) -> int | None:
        """Id that fills a batch up."""

    def get_vocab(self) -> dict[str, int]:
        """Every token, added ones included, with its id."""


@dataclass(frozen=True, slots=True)
class TokenizerMatch:
    """What a teacher's tokenizer has in common with the student's.

    Attributes:
        verdict: ``same`` when every id says the same in both, ``alignable`` when the tokens of both can be
            paired by their bytes, ``refused`` when they are not the same and one has no byte table.
        overlap: Share of the student's tokens that the teacher's vocabulary has too, under whatever id.
        differing: Ids that do not say the same in both.
        reason: Why they are not the same, or cannot be aligned; empty when they are the same.
    """

    verdict: Literal["same", "alignable", "refused"]
    overlap: float
    differing: int
    reason: str = ""


def fingerprint(tokenizer: Tokenizer) -> str:
    """32 hexadecimal digits that are equal for equal byte tables with equal special roles.

    Without a byte table they are the begin of the SHA-256 of the (id, token) pairs in order and of the ids of
    bos, eos and pad.
    """
    try:
        return vocabulary_of(tokenizer).fingerprint
    except ConfigError:
        # It has no byte table: its own spelling tells it apart.
        pairs = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    roles = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    # JSON writes every token, also one with a lone surrogate, in one way only.
    digest = hashlib.sha256(json.dumps([pairs, roles]).encode())
    return digest.hexdigest()[:FINGERPRINT_CHARACTERS]


def compare(student: Tokenizer, teacher: Tokenizer) -> TokenizerMatch:
    """How the teacher's tokenizer stands to the student's; see :func:`atroposlib.align.sameness.compare`."""
    try:
        match = sameness.compare(vocabulary_of(student), vocabulary_of(teacher))
    except ConfigError as refusal:
        return _as_spelled(student, teacher, refusal)
    verdict: Literal["same", "alignable"] = "same" if match.same else "alignable"
    return TokenizerMatch(verdict, match.overlap, match.differing, match.reason)


def _as_spelled(student: Tokenizer, teacher: Tokenizer, refusal: ConfigError) -> TokenizerMatch:
    """Two vocabularies of which one has no byte table, for the reason that ``refusal`` gives."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    differing = {number for _, number in ours.items() ^ theirs.items()}
    if not differing:
        return TokenizerMatch("same", 1.0, 0)
    shared = sum(token in theirs for token in ours)
    where = f"{refusal.where}: " if refusal.where else ""
    reason = f"{where}{refusal.what}, and only equal vocabularies need no alignment"
    return TokenizerMatch("refused", shared / len(ours) if ours else 1.0, len(differing), reason)

"""Tells tokenizers apart: a fingerprint of one, and how much two have in common.

Tokens are compared as their vocabularies spell them, so equal bytes that two families spell in different ways
(``Ġthe`` and ``▁the``) count as different.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, Protocol

FINGERPRINT_CHARACTERS = 32


class Vocabulary(Protocol):
    """What is asked of a tokenizer; every Hugging Face tokenizer has it."""

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
        verdict: ``same`` when every id stands for the same token in both, else ``other``.
        overlap: Share of the student's tokens that the teacher's vocabulary has too, under whatever id.
        differing: Ids that do not stand for the same token in both.
    """

    verdict: Literal["same", "other"]
    overlap: float
    differing: int


def fingerprint(tokenizer: Vocabulary) -> str:
    """32 hexadecimal digits that are equal for equal vocabularies with equal special roles.

    They are the begin of the SHA-256 of the (id, token) pairs in order and of the ids of bos, eos and pad.
    """
    pairs = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    roles = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    # JSON writes every token, also one with a lone surrogate, in one way only.
    digest = hashlib.sha256(json.dumps([pairs, roles]).encode())
    return digest.hexdigest()[:FINGERPRINT_CHARACTERS]


def compare(student: Vocabulary, teacher: Vocabulary) -> TokenizerMatch:
    """How the teacher's vocabulary stands to the student's; special roles are not compared."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    shared = sum(token in theirs for token in ours)
    differing = {number for _, number in ours.items() ^ theirs.items()}
    return TokenizerMatch(
        verdict="other" if differing else "same",
        overlap=shared / len(ours) if ours else 1.0,
        differing=len(differing),
    )

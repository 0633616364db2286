"""How the tokens of one vocabulary are written in the tokens of another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from atroposlib.align.tables.table import TEXT
from atroposlib.projection.speller import Speller

NO_ID = -1

KEPT = 4
"""Tokens of a spelling that are kept."""


@dataclass(frozen=True)
class Splits:
    """The spellings of a vocabulary's tokens. V ids of the vocabulary, spelled in ids of another.

    Attributes:
        ids: int32 [V, KEPT]. The first tokens of each spelling; ``NO_ID`` behind its end, at markers, and
            where the other vocabulary cannot write the bytes.
        counts: int32 [V]. How many tokens the whole spelling has.
        encoded: bool [V]. Whether the other tokenizer chose them (:class:`.speller.Spelling`).
    """

    ids: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    encoded: npt.NDArray[np.bool_]

    @cached_property
    def first(self) -> npt.NDArray[np.int32]:
        """int32 [V]: the token that a text beginning with these bytes begins with; ``NO_ID`` if unknown.

        A part of a character has one only where the other side has the same part as a token: whatever else
        it would be split into says nothing of the character that the text goes on to spell.
        """
        return np.where(self.encoded | (self.counts == 1), self.ids[:, 0], NO_ID)


def split(source: Speller, target: Speller) -> Splits:
    """Spell every text token of ``source`` in the tokens of ``target``."""
    vocabulary = source.vocabulary
    numbers = np.flatnonzero(vocabulary.kinds == TEXT)
    spellings = target.spell([source.parts[number] for number in numbers.tolist()])
    ids = np.full((len(vocabulary), KEPT), NO_ID, dtype=np.int32)
    counts = np.zeros(len(vocabulary), dtype=np.int32)
    encoded = np.zeros(len(vocabulary), dtype=np.bool_)
    ids[numbers] = [(one.ids + [NO_ID] * KEPT)[:KEPT] for one in spellings]
    counts[numbers] = [len(one.ids) for one in spellings]
    encoded[numbers] = [one.encoded for one in spellings]
    return Splits(ids, counts, encoded)

"""Other ways to cut a text into tokens, and chunks found by sets: what an alignment is checked against."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from atroposlib.align.vocabulary import TEXT, Vocabulary

LONGEST = 12


class Cutter:
    """Cuts texts into the tokens of a vocabulary at random, not only in the way its tokenizer would.

    Args:
        vocabulary: Whose tokens to cut into.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        blob, offsets = self.vocabulary.blob.tobytes(), self.vocabulary.offsets.tolist()
        usable = self.vocabulary.kinds == TEXT
        if self.vocabulary.prefix != "none":
            # Behind a cut there may be a space that was put in: a text of its own would begin there.
            usable &= ~self.vocabulary.cuts
        return {
            blob[offsets[number] : offsets[number + 1]]: number
            for number in np.flatnonzero(usable).tolist()
            if offsets[number + 1] - offsets[number] <= LONGEST
        }

    def cut(self, text: bytes, seed: int) -> list[int] | None:
        """Ids whose bytes are the text, or None where there are none of them.

        A tokenizer that puts a space in before a text may have one here too.
        """
        draw = random.Random(seed)
        put_in = self.vocabulary.prefix != "none" and (text[:1] == b" " or draw.random() < 0.5)
        text = b" " + text if put_in else text
        can_end = [False] * len(text) + [True]
        for begin in reversed(range(len(text))):
            can_end[begin] = any(can_end[end] for end in self._ends(text, begin))
        if not can_end[0]:
            return None
        ids, begin = [], 0
        while begin < len(text):
            end = draw.choice([end for end in self._ends(text, begin) if can_end[end]])
            ids.append(self._ids[text[begin:end]])
            begin = end
        return ids

    def _ends(self, text: bytes, begin: int) -> list[int]:
        last = min(len(text), begin + LONGEST)
        return [end for end in range(begin + 1, last + 1) if text[begin:end] in self._ids]


def chunks_by_sets(student: Sequence[int], teacher: Sequence[int]) -> tuple[list[int], list[int]]:
    """The chunk of every token, given how long the tokens of two cuts of one text are.

    A token without length goes with the token after it; behind the last one there is none, and it is -1.
    """
    ends = [
        {sum(lengths[: index + 1]) for index in range(len(lengths))} - {0} for lengths in (student, teacher)
    ]
    common = sorted(ends[0] & ends[1])

    def chunk(lengths: Sequence[int], index: int) -> int:
        begin = sum(lengths[:index])
        return next((number for number, end in enumerate(common) if end > begin), -1)

    return (
        [chunk(student, index) for index in range(len(student))],
        [chunk(teacher, index) for index in range(len(teacher))],
    )

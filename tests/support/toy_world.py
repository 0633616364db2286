"""Two tokenizers of one source of bytes, with exact next-token distributions.

Bytes follow an order-1 chain over four letters, one of them a space. Each side reads its text by the longest
token that matches, so what a sequence of tokens says of the text behind it is exact: the text goes on so that
none of the matches could have been longer. A student is the source with its probabilities raised to the power
``tilt``; at 1 it defines the same distribution over texts as the teacher, though its tokens are others.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.tables.table import SPECIAL, TEXT, Vocabulary
from atroposlib.collate.across import ChunkArrays, TeacherRows, TokenizerPair, chunk_arrays
from atroposlib.projection.quotient import quotient_of
from atroposlib.projection.splits import KEPT, NO_ID, Splits

LETTERS = b"abc "
SOURCE = np.array(
    [[0.10, 0.45, 0.15, 0.30], [0.30, 0.10, 0.35, 0.25], [0.25, 0.30, 0.05, 0.40], [0.35, 0.30, 0.25, 0.10]]
)
"""Row: the letter before. Column: the letter behind."""

START = np.array([0.4, 0.3, 0.2, 0.1])

STUDENT = (b"a", b"b", b"c", b" ", b"ab", b"bc", b" a", b"abc", b"ca", b" b")
TEACHER = (b"a", b"b", b"c", b" ", b"ab", b" ab", b"cb", b"ba", b" c", b"bab", b"bc")

Suffixes = frozenset[bytes]
"""What the text cannot go on with, because an earlier match would have been longer."""


@dataclass(frozen=True)
class Tokens:
    """One side: text tokens, and behind them a marker that begins every sequence."""

    text: tuple[bytes, ...]

    @property
    def bos(self) -> int:
        """Id of the marker."""
        return len(self.text)

    def vocabulary(self) -> Vocabulary:
        """The byte table."""
        lengths = [*map(len, self.text), 0]
        return Vocabulary(
            blob=np.frombuffer(b"".join(self.text), dtype=np.uint8),
            offsets=np.append(0, np.cumsum(lengths)),
            kinds=np.array([TEXT] * len(self.text) + [SPECIAL], dtype=np.uint8),
            cuts=np.zeros(len(lengths), dtype=np.bool_),
            prefix="none",
            roles={"bos": self.bos},
            names={self.bos: "<s>"},
            lossy=(),
        )

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text, without the marker."""
        ids: list[int] = []
        while text:
            ids.append(max(self._matching(text), key=lambda number: len(self.text[number])))
            text = text[len(self.text[ids[-1]]) :]
        return ids

    def _matching(self, text: bytes) -> list[int]:
        return [number for number, token in enumerate(self.text) if text.startswith(token)]

    def distributions(self, ids: list[int], tilt: float) -> npt.NDArray[np.float64]:
        """[T, V]: of each token of a sequence that begins with the marker, given those before it."""
        rows = [np.eye(len(self.text) + 1)[self.bos]]
        before, cannot = b"", frozenset[bytes]()
        for number in ids[1:]:
            rows.append(self._next(before[-1:], cannot, tilt))
            token = self.text[number]
            cannot = self._behind(token, cannot)
            before += token
        return np.array(rows)

    @functools.cache  # noqa: B019  # two sides live as long as the tests
    def _next(self, last: bytes, cannot: Suffixes, tilt: float) -> npt.NDArray[np.float64]:
        found = [
            _begins(last, token, tilt) * _avoids(token[-1:], self._behind(token, cannot), tilt)
            if not any(token.startswith(other) for other in cannot)
            else 0.0
            for token in self.text
        ]
        return np.array([*found, 0.0]) / _avoids(last, cannot, tilt)

    def _behind(self, token: bytes, cannot: Suffixes) -> Suffixes:
        longer = {other for other in self.text if other.startswith(token)} | cannot
        return frozenset(
            other[len(token) :] for other in longer if other.startswith(token) and other != token
        )


@functools.cache
def _chain(tilt: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    tilted = SOURCE**tilt, START**tilt
    return tilted[0] / tilted[0].sum(1, keepdims=True), tilted[1] / tilted[1].sum()


def _probability(last: bytes, letter: bytes, tilt: float) -> float:
    chain, start = _chain(tilt)
    column = LETTERS.index(letter)
    return float(chain[LETTERS.index(last), column] if last else start[column])


def _begins(last: bytes, text: bytes, tilt: float) -> float:
    """Probability that a text goes on with ``text`` behind the letter ``last``."""
    letters = [last, *(bytes([letter]) for letter in text)]
    steps = itertools.pairwise(letters)
    return float(np.prod([_probability(before, letter, tilt) for before, letter in steps]))


@functools.cache
def _avoids(last: bytes, cannot: Suffixes, tilt: float) -> float:
    """Probability that a text goes on with none of these."""
    if b"" in cannot:
        return 0.0
    if not cannot:
        return 1.0
    return sum(
        _probability(last, letter, tilt)
        * _avoids(letter, frozenset(other[1:] for other in cannot if other.startswith(letter)), tilt)
        for letter in (bytes([number]) for number in LETTERS)
    )


Sides = tuple[Tokens, Tokens]

SIDES = Tokens(STUDENT), Tokens(TEACHER)
"""The student's and the teacher's."""


@functools.cache
def toy_pair(sides: Sides = SIDES) -> TokenizerPair:
    """Both vocabularies with their components."""
    vocabularies = sides[0].vocabulary(), sides[1].vocabulary()
    splits = _splits(*sides), _splits(*sides[::-1])
    return TokenizerPair.of(*vocabularies, quotient_of(*vocabularies, *splits))


def _splits(source: Tokens, target: Tokens) -> Splits:
    ids = np.full((len(source.text) + 1, KEPT), NO_ID, dtype=np.int32)
    counts = np.zeros(len(ids), dtype=np.int32)
    for number, token in enumerate(source.text):
        spelled = target.encode(token)
        ids[number, : len(spelled)] = spelled
        counts[number] = len(spelled)
    return Splits(ids, counts, counts > 0)


def sample_text(length: int, seed: int) -> bytes:
    """A text of the teacher's source."""
    text = bytearray()
    row = START
    for uniform in np.random.default_rng(seed).random(length):
        letter = int(np.searchsorted(row.cumsum(), uniform * row.sum()))
        text.append(LETTERS[letter])
        row = SOURCE[letter]
    return bytes(text)


@dataclass(frozen=True)
class ToySequence:
    """One text as both sides read it, with the marker in front: ids, chunk ids, and full distributions."""

    sides: Sides
    text: bytes
    student_ids: list[int]
    teacher_ids: list[int]
    student_chunk_id: npt.NDArray[np.int32]
    teacher_chunk_id: npt.NDArray[np.int32]

    def student(self, tilt: float) -> npt.NDArray[np.float64]:
        """[T, V]: row t is the distribution of token t."""
        return self.sides[0].distributions(self.student_ids, tilt)

    def teacher(self) -> npt.NDArray[np.float64]:
        """[U, V], likewise."""
        return self.sides[1].distributions(self.teacher_ids, 1.0)

    def rows(self, k: int) -> TeacherRows:
        """What a server ships: each standing token, then the top-k without it."""
        ids = np.full((len(self.teacher_ids), 1 + k), -1, dtype=np.int32)
        logprobs = np.full(ids.shape, -np.inf)
        for row, (number, probabilities) in enumerate(zip(self.teacher_ids, self.teacher(), strict=True)):
            top = np.argsort(-probabilities, kind="stable")[:k]
            listed = [number, *(other for other in top if other != number and probabilities[other] > 0)]
            ids[row, : len(listed)] = listed
            logprobs[row, : len(listed)] = np.log(probabilities[listed])
        return TeacherRows(0, ids, logprobs)

    def arrays(self, k: int = len(TEACHER) + 1, trained: npt.NDArray[np.bool_] | None = None) -> ChunkArrays:
        """The targets of its tokens; of all of them when ``trained`` is omitted."""
        return chunk_arrays(
            toy_pair(self.sides),
            np.array(self.student_ids),
            np.ones(len(self.student_ids), dtype=np.bool_) if trained is None else trained,
            np.array(self.teacher_ids),
            self.rows(k),
            self.student_chunk_id,
            self.teacher_chunk_id,
        )


def toy_sequence(text: bytes, sides: Sides = SIDES) -> ToySequence:
    """A text on both sides."""
    ids = [[side.bos, *side.encode(text)] for side in sides]
    pair = toy_pair(sides)
    alignment = TokenAligner(pair.student.vocabulary, pair.teacher.vocabulary).align_ids(*ids)
    return ToySequence(sides, text, *ids, alignment.student_chunk_id, alignment.teacher_chunk_id)

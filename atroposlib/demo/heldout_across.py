"""The held-out measures of a student with another tokenizer than its teacher's, on the teacher's own texts.

Two figures come of one text that both models read, each in its own tokens:

- Quotient KL at safe cuts, in nats per cut: where no token of either vocabulary reaches over a boundary, both
  models say how the text goes on, in tokens of one choice of first bytes. Ids that one text may begin with
  are one outcome (:mod:`atroposlib.projection.quotient`), and the KL is over the teacher's likeliest 64
  outcomes and all others as one, from the whole distributions of both. Putting outcomes together can only
  lower it, so it is a lower bound of the KL of the two distributions of text.
- Bits per byte: the negative log2 of the probability of the text, per byte of it. What the student has more
  than the teacher itself estimates the KL of whole texts.

Axes: T tokens of the student's continuation, U of the teacher's, C outcomes, V ids of a model's head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.align.chunks import NO_CHUNK
from atroposlib.collate.across.pair import Side, TokenizerPair
from atroposlib.demo.heldout import Text, logprobs
from atroposlib.demo.paired_texts import PairedText, coverage
from atroposlib.errors import UsageError
from atroposlib.projection.splits import NO_ID

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LISTED = 64
"""The teacher's likeliest outcomes that stand alone."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cut:
    """A boundary at which both models say how the text goes on.

    Attributes:
        student: The student's continuation token behind it.
        teacher: The teacher's.
        allowed: bool [257]. First symbols of the tokens that may stand there; the last is a marker's.
    """

    student: int
    teacher: int
    allowed: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The teacher's distribution at a cut.

    Attributes:
        listed: int64 [L]. Its likeliest outcomes.
        masses: float64 [L + 1]. Their probabilities, and that of all others together.
    """

    listed: NDArray[np.int64]
    masses: Floats


class AcrossVocabularies:
    """The measure of a student that has another tokenizer than its teacher.

    Args:
        teacher: The teacher.
        pair: Both vocabularies.
        texts: What the teacher wrote.

    Raises:
        UsageError: There is nothing to measure in the texts (``usage.model``).
    """

    def __init__(self, teacher: PreTrainedModel, pair: TokenizerPair, texts: Sequence[PairedText]) -> None:
        self._pair = pair
        self._texts = [text for text in texts if (text.student_chunk_id != NO_CHUNK).any()]
        self._cuts = [cuts_of(text, pair) for text in self._texts]
        self._outcomes: list[list[Outcomes]] = []
        self._facts: dict[str, Any] = {
            "cuts": sum(map(len, self._cuts)),
            "bytes": sum(_bytes(text, pair) for text in self._texts),
            **coverage(texts),
        }
        if not self._facts["cuts"]:
            raise UsageError("the teacher wrote nothing that can be compared", code="usage.model")
        nats = 0.0
        for text, cuts in zip(self._texts, self._cuts, strict=True):
            logs = logprobs(teacher, text.teacher).double().numpy(force=True)
            nats += _surprisal(logs, text.teacher, text.teacher_chunk_id)
            rows = [masses(logs[cut.teacher], pair.teacher, cut, len(pair.teacher_sizes)) for cut in cuts]
            self._outcomes.append([likeliest(row) for row in rows])
        self._facts["teacher_bits_per_byte"] = self._bits_per_byte(nats)

    def of(self, student: PreTrainedModel) -> dict[str, Any]:
        """The figures of one student.

        Returns:
            ``kl`` in nats per cut over ``cuts``; ``bits_per_byte`` over ``bytes``, and
            ``teacher_bits_per_byte``; what :func:`~atroposlib.demo.paired_texts.coverage` tells.
        """
        pair = self._pair
        kl = nats = 0.0
        for text, cuts, outcomes in zip(self._texts, self._cuts, self._outcomes, strict=True):
            logs = logprobs(student, text.student).double().numpy(force=True)
            nats += _surprisal(logs, text.student, text.student_chunk_id)
            for cut, theirs in zip(cuts, outcomes, strict=True):
                ours = masses(logs[cut.student], pair.student, cut, len(pair.teacher_sizes))
                kl += divergence(theirs, ours)
        return {"kl": kl / self._facts["cuts"], "bits_per_byte": self._bits_per_byte(nats), **self._facts}

    def _bits_per_byte(self, nats: float) -> float:
        return nats / math.log(2) / int(self._facts["bytes"])


def cuts_of(text: PairedText, pair: TokenizerPair) -> list[Cut]:
    """The safe cuts of a text: the begins of its chunks behind which both tokens are allowed."""
    first = [np.unique(ids, return_index=True) for ids in (text.student_chunk_id, text.teacher_chunk_id)]
    begins = [starts[ids != NO_CHUNK].tolist() for ids, starts in first]
    found = []
    for ours, theirs in zip(*begins, strict=True):
        before_ours, y_ours = _around(text.student, ours, pair.student)
        before_theirs, y_theirs = _around(text.teacher, theirs, pair.teacher)
        # Only before the first token of a continuation can the two sides differ in what stands before it.
        allowed = pair.safe[before_ours] & pair.safe[before_theirs]
        if allowed[y_ours] and allowed[y_theirs]:
            found.append(Cut(ours, theirs, allowed))
    return found


def masses(logprobs_row: Floats, side: Side, cut: Cut, outcomes: int) -> Floats:
    """What a model gives each outcome at a cut, given that an allowed token stands there.

    Args:
        logprobs_row: float64 [V], nats.
        side: The model's vocabulary.
        cut: Which tokens may stand there.
        outcomes: C.

    Returns:
        float64 [C + 1], summing to 1; the last entry is that of the ids that belong to no outcome.
    """
    ids = side.rows(np.arange(len(logprobs_row)))
    component = side.component[ids]
    weights = np.where(cut.allowed[side.first[ids]], np.exp(logprobs_row), 0.0)
    found = np.bincount(
        np.where(component == NO_ID, outcomes, component), weights=weights, minlength=outcomes + 1
    )
    shares: Floats = found / found.sum()
    return shares


def likeliest(row: Floats) -> Outcomes:
    """The largest masses of float64 [C + 1], and the sum of the others, which is not 1 minus theirs."""
    count = min(LISTED, len(row) - 1)
    listed = np.argpartition(row[:-1], -count)[-count:]
    return Outcomes(listed, _together(row, listed))


def divergence(teacher: Outcomes, student: Floats) -> float:
    """KL(teacher || student) in nats over the teacher's listed outcomes and all others as one.

    Args:
        teacher: Its outcomes.
        student: float64 [C + 1], of :func:`masses`.
    """
    ours = _together(student, teacher.listed)
    some = teacher.masses > 0
    q, p = teacher.masses[some], np.maximum(ours[some], np.finfo(np.float64).tiny)
    return float((q * (np.log(q) - np.log(p))).sum())


def _together(row: Floats, listed: NDArray[np.int64]) -> Floats:
    others = row.copy()
    others[listed] = 0.0
    return np.append(row[listed], others.sum())


def _around(text: Text, position: int, side: Side) -> tuple[int, int]:
    """Last symbol of the token before a continuation token, and the first symbol of that."""
    ids = np.array([*text.prompt[-1:], *text.continuation], dtype=np.int64)[position : position + 2]
    before, behind = side.rows(ids)
    return int(side.last[before]), int(side.first[behind])


def _surprisal(logs: Floats, text: Text, chunk_id: NDArray[np.int32]) -> float:
    """Negative log-probability, in nats, of the continuation tokens that are in a chunk."""
    covered = np.flatnonzero(chunk_id != NO_CHUNK)
    return -float(logs[covered, np.array(text.continuation, dtype=np.int64)[covered]].sum())


def _bytes(text: PairedText, pair: TokenizerPair) -> int:
    """Bytes of the continuation that are in chunks."""
    vocabulary = pair.student.vocabulary
    ids = np.array(text.student.continuation)[text.student_chunk_id != NO_CHUNK]
    return sum(len(vocabulary.bytes_of(number)) for number in ids.tolist())

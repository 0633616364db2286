"""Texts as both tokenizers write them, what the teacher ships of them, and what it holds at safe cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from atroposlib.align.aligner import TokenAligner
from atroposlib.collate.across.pair import TokenizerPair
from atroposlib.demo import heldout
from atroposlib.projection.bigrams import safe_bigrams
from atroposlib.projection.splits import NO_ID
from study.texts import Text

K = 20
LARGEST = 64
BLANKS = b" \t\n\v\f\r"
ANY = 256
"""Stands for the first byte of a token without bytes, which is in every class."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Item:
    """One text on both sides. T student tokens, U teacher tokens, R = U - 1 rows, K + 1 columns.

    Attributes:
        student_ids, teacher_ids: int64 [T] and [U], the prompt in front.
        student_chunk_id, teacher_chunk_id: int32 [T] and [U], minimal chunks.
        trained: bool [T]. Tokens of the continuation without its last chunk.
        ids, logprobs: int64 and float32 [R, K + 1] from position 1 on: the token that stands there, then the
            K likeliest ones without it.
        nats, total_bytes: The teacher's surprisal of the trained tokens' text, and its length.
    """

    student_ids: Ints
    teacher_ids: Ints
    student_chunk_id: Ints
    teacher_chunk_id: Ints
    trained: npt.NDArray[np.bool_]
    ids: Ints
    logprobs: npt.NDArray[np.float32]
    nats: float
    total_bytes: int


@dataclass(frozen=True)
class Cuts:
    """What the teacher's whole distribution says at the P safe cuts of one text, given the class of the cut.

    Attributes:
        rows: int64 [P]. The student's position that predicts the token behind the cut.
        before: int64 [P]. The last byte before it, which names the class.
        components, masses: int64 and float32 [P, LARGEST], the likeliest components.
        shipped: int64 [P, K + 1]. The components that the teacher's K likeliest ids show; -1 for none.
        shipped_mass: float32 [P]. The mass of these K ids.
    """

    rows: Ints
    before: Ints
    components: Tensor
    masses: Tensor
    shipped: Tensor
    shipped_mass: Tensor


class Pair:
    """Both tokenizers, their common outcomes, and which cuts are safe."""

    def __init__(self, student: Path, teacher: Path) -> None:
        self.aligner = TokenAligner(student, teacher)
        self.libraries = [Tokenizer.from_file(str(side / "tokenizer.json")) for side in (student, teacher)]
        self.both = TokenizerPair.load(student, teacher)
        """What the losses read; their judge takes no more of it than which ids are one outcome."""
        self.outcomes = len(self.both.teacher_sizes)
        blank = np.isin(np.arange(256), list(BLANKS))
        safe = safe_bigrams(self.aligner.student, self.aligner.teacher) & ~(blank[:, None] & blank)
        self.safe = np.concatenate([safe, np.ones((256, 1), dtype=np.bool_)], axis=1)
        """bool [256, 257]; the last column is :data:`ANY`'s."""

    def first_bytes(self, side: str, width: int) -> Tensor:
        """int64 [width]: the first byte of each id, :data:`ANY` where it has none."""
        table = getattr(self.aligner, side)
        first = np.full(width, ANY)
        known = np.flatnonzero(np.diff(table.offsets))
        first[known] = table.blob[table.offsets[known]]
        return torch.from_numpy(first)

    def components(self, side: str, width: int) -> Tensor:
        """int64 [width]: the component of each id, C for none."""
        table = getattr(self.both, side)
        component = table.component[table.rows(np.arange(width))]
        return torch.from_numpy(np.where(component == NO_ID, self.outcomes, component).astype(np.int64))

    def encode(self, text: Text) -> tuple[Ints, Ints, Ints, Ints, npt.NDArray[np.bool_]]:
        """Ids of both sides, their chunks, and which student tokens are trained."""
        both = [np.array(one.encode(text.prompt + text.continuation).ids) for one in self.libraries]
        aligned = self.aligner.align_ids(*both)
        chunk = aligned.student_chunk_id.astype(np.int64)
        ends = np.cumsum(self.aligner.student.lengths(both[0]))
        begins = ends - self.aligner.student.lengths(both[0])
        trained = (begins >= len(text.prompt.encode())) & (chunk >= 0) & (chunk < chunk.max())
        return both[0], both[1], chunk, aligned.teacher_chunk_id.astype(np.int64), trained


class Teacher:
    """The teacher's model; only the preparation needs it."""

    def __init__(self, directory: Path, pair: Pair) -> None:
        self.model = heldout.load_model(directory, torch.device("cpu"))
        self.pair = pair
        width = self.model.config.vocab_size
        self.component = pair.components("teacher", width)
        self.first = pair.first_bytes("teacher", width)

    def read(self, text: Text) -> tuple[Item, Tensor]:
        """A text, and the teacher's log probabilities [R, V] in nats from position 1 on."""
        ours, theirs, our_chunks, their_chunks, trained = self.pair.encode(text)
        with torch.inference_mode():
            logprobs = self.model(torch.from_numpy(theirs)[None]).logits[0, :-1].log_softmax(-1)
        scored = torch.from_numpy(theirs[1:, None])
        top, ids = logprobs.topk(K)
        again = ids == scored
        top, ids = top.masked_fill(again, -torch.inf), ids.masked_fill(again, -1)
        said = logprobs.gather(-1, scored)
        used = np.isin(their_chunks[1:], our_chunks[trained])
        item = Item(
            student_ids=ours,
            teacher_ids=theirs,
            student_chunk_id=our_chunks,
            teacher_chunk_id=their_chunks,
            trained=trained,
            ids=torch.cat([scored, ids], -1).numpy(),
            logprobs=torch.cat([said, top], -1).numpy(),
            nats=-float(said[:, 0][torch.from_numpy(used)].sum(dtype=torch.float64)),
            total_bytes=int(self.pair.aligner.student.lengths(ours)[trained].sum()),
        )
        return item, logprobs

    def cuts(self, item: Item, logprobs: Tensor) -> Cuts:
        """The safe cuts before trained tokens."""
        places = safe_cuts(self.pair, item)
        ours, theirs, before = places.T
        shown = logprobs[torch.from_numpy(theirs - 1)].exp()
        keep = torch.from_numpy(self.pair.safe)[torch.from_numpy(before)][:, self.first]
        inside = shown * keep
        inside /= inside.sum(-1, keepdim=True)
        masses = torch.zeros(len(places), self.pair.outcomes + 1).index_add_(1, self.component, inside)
        largest, components = masses[:, :-1].topk(LARGEST)
        top_ids = shown.topk(K).indices
        shipped = self.component[top_ids]
        shipped = torch.where(keep.gather(-1, top_ids) & (shipped < self.pair.outcomes), shipped, -1)
        return Cuts(ours - 1, before, components, largest, shipped, inside.gather(-1, top_ids).sum(-1))


def safe_cuts(pair: Pair, item: Item) -> Ints:
    """int64 [P, 3]: student position and teacher position behind each safe cut, and the byte before it."""
    ours = np.flatnonzero(np.diff(item.student_chunk_id, prepend=-2) != 0)
    theirs = np.flatnonzero(np.diff(item.teacher_chunk_id, prepend=-2) != 0)
    there = dict(zip(item.teacher_chunk_id[theirs].tolist(), theirs.tolist(), strict=True))
    table = pair.aligner.student
    found = []
    for place in ours.tolist():
        number = int(item.student_chunk_id[place])
        if place == 0 or not item.trained[place] or number not in there:
            continue
        before, behind = (table.bytes_of(int(item.student_ids[at])) for at in (place - 1, place))
        if before and behind and pair.safe[before[-1], behind[0]]:
            found.append((place, there[number], before[-1]))
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def read_all(teacher: Teacher, texts: Sequence[Text], *, cuts: bool) -> tuple[list[Item], list[Cuts]]:
    """All texts, one after the other: the distributions of one fill 100 MB."""
    items, found = [], []
    for text in texts:
        item, logprobs = teacher.read(text)
        if not item.trained.any():
            continue
        items.append(item)
        if cuts:
            found.append(teacher.cuts(item, logprobs))
    return items, found

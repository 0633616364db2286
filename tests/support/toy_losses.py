"""The losses across tokenizers of the toy world, written out in plain Python from bytes and dictionaries.

Nothing here reads what the code under test makes, but the columns that a server would ship.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.support.toy_world import LETTERS, Sides, Tokens, ToySequence, toy_sequence

MARK = -1
TAIL = -1


@dataclass
class Cut:
    """A safe cut: the tokens that begin there, and the letters that keep it one (with the marker)."""

    student: int
    teacher: int
    allowed: set[int]


@dataclass
class Events:
    """What both sides give to the events of one cut."""

    student: dict[object, Tensor] = field(default_factory=dict)
    known: dict[object, float] = field(default_factory=dict)
    is_open: dict[object, bool] = field(default_factory=dict)


def first_letter(side: Tokens, number: int) -> int:
    """The first letter of a token, ``MARK`` for the marker."""
    return MARK if number == side.bos else side.text[number][0]


def is_safe(sides: Sides, before: int, behind: int) -> bool:
    """Whether a cut between two letters is the end of a token on both sides, and not between blanks."""
    both = bytes([before, behind])
    return both != b"  " and not any(both in token for side in sides for token in side.text)


def safe_cuts(sequence: ToySequence) -> list[Cut]:
    """The safe cuts of a text, the one behind the marker among them."""
    begins = []
    for side, ids in zip(sequence.sides, (sequence.student_ids, sequence.teacher_ids), strict=True):
        at, places = 0, {}
        for index, number in enumerate(ids[1:], start=1):
            places[at] = index
            at += len(side.text[number])
        begins.append(places)
    found = []
    for at in sorted(begins[0].keys() & begins[1].keys()):
        allowed = {MARK, *LETTERS}
        if at:
            before = sequence.text[at - 1]
            if not is_safe(sequence.sides, before, sequence.text[at]):
                continue
            allowed = {MARK} | {letter for letter in LETTERS if is_safe(sequence.sides, before, letter)}
        found.append(Cut(begins[0][at], begins[1][at], allowed))
    return found


def components(sides: Sides) -> tuple[dict[int, int], dict[int, int]]:
    """Component of each id on both sides, by joining until nothing changes."""
    edges = [(("s", number), ("t", sides[1].encode(token)[0])) for number, token in enumerate(sides[0].text)]
    edges += [(("s", sides[0].encode(token)[0]), ("t", number)) for number, token in enumerate(sides[1].text)]
    edges.append((("s", sides[0].bos), ("t", sides[1].bos)))
    label = {node: index for index, node in enumerate({node for edge in edges for node in edge})}
    changed = True
    while changed:
        changed = False
        for one, other in edges:
            if label[one] != label[other]:
                label[one] = label[other] = min(label[one], label[other])
                changed = True
    found: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for (side, number), component in label.items():
        found[side == "t"][number] = component
    return found


def class_of_student(sequence: ToySequence, log_p: Tensor, cut: Cut) -> Tensor:
    """Log probability of the class."""
    side = sequence.sides[0]
    ids = [number for number in range(side.bos + 1) if first_letter(side, number) in cut.allowed]
    return log_p[cut.student, ids].logsumexp(0)


def named(sequence: ToySequence, k: int, token: int) -> dict[int, float]:
    """Probabilities of the tokens that the teacher ships."""
    return _shipped(sequence.text, sequence.sides, k)[token]


@functools.cache
def _shipped(text: bytes, sides: Sides, k: int) -> list[dict[int, float]]:
    rows = toy_sequence(text, sides).rows(k)
    return [
        {number: math.exp(logprob) for number, logprob in zip(ids, logprobs, strict=True) if number >= 0}
        for ids, logprobs in zip(rows.ids.tolist(), rows.logprobs.tolist(), strict=True)
    ]


def class_of_teacher(sequence: ToySequence, shipped: dict[int, float], cut: Cut) -> float:
    """Share of the shipped mass that is in the class."""
    side = sequence.sides[1]
    inside = [mass for number, mass in shipped.items() if first_letter(side, number) in cut.allowed]
    return sum(inside) / sum(shipped.values())


def events_at(sequence: ToySequence, log_p: Tensor, k: int, cut: Cut, without: object = None) -> Events:
    """The cells of one cut: listed components, then the tail; ``without`` is put into the tail."""
    ours, theirs = components(sequence.sides)
    shipped = named(sequence, k, cut.teacher)
    share = class_of_teacher(sequence, shipped, cut)
    log_class = class_of_student(sequence, log_p, cut)
    events = Events()
    for number, mass in shipped.items():
        if first_letter(sequence.sides[1], number) in cut.allowed:
            cell = TAIL if theirs[number] == without else theirs[number]
            events.known[cell] = events.known.get(cell, 0.0) + mass / share
    for cell in events.known:
        members = [number for number, component in theirs.items() if component == cell]
        events.is_open[cell] = cell == TAIL or any(number not in shipped for number in members)
    events.known.setdefault(TAIL, 0.0)
    events.is_open[TAIL] = True
    side = sequence.sides[0]
    for number in range(side.bos + 1):
        if first_letter(side, number) in cut.allowed:
            cell = ours[number] if ours[number] in events.known else TAIL
            mass = (log_p[cut.student, number] - log_class).exp()
            events.student[cell] = events.student.get(cell, 0.0) + mass
    return events


def chunk_logs(sequence: ToySequence, log_p: Tensor, k: int, cut: Cut, end: Cut) -> tuple[Tensor, float]:
    """Log probability of the tokens from a cut to the next and of the class there, given that at the cut."""
    student = sum(log_p[index, sequence.student_ids[index]] for index in range(cut.student, end.student))
    student = student + class_of_student(sequence, log_p, end) - class_of_student(sequence, log_p, cut)
    teacher = 0.0
    for index in range(cut.teacher, end.teacher):
        teacher += math.log(named(sequence, k, index)[sequence.teacher_ids[index]])
    shares = [class_of_teacher(sequence, named(sequence, k, place.teacher), place) for place in (end, cut)]
    return student, teacher + math.log(shares[0]) - math.log(shares[1])


def complete(events: Events) -> dict[object, float]:
    """The distribution max(known, level * student) over open events that sums to 1, by bisection."""

    def at(level: float) -> dict[object, float]:
        return {
            cell: max(known, level * float(events.student[cell].detach())) if events.is_open[cell] else known
            for cell, known in events.known.items()
            if cell in events.student
        }

    low, high = 0.0, 1e12
    for _ in range(300):
        middle = math.sqrt(low * high) if low else high / 1e6
        low, high = (middle, high) if sum(at(middle).values()) < 1 else (low, middle)
        if high < 1e-30:
            return at(0.0)
    return at(low)


def observed(sequence: ToySequence, events: Events, cut: Cut) -> object:
    """The cell that both first tokens are in; None where they are in two."""
    ours, theirs = components(sequence.sides)
    cells = [
        label if label in events.known else TAIL
        for label in (ours[sequence.student_ids[cut.student]], theirs[sequence.teacher_ids[cut.teacher]])
    ]
    return cells[0] if cells[0] == cells[1] else None


def quotient_events(sequence: ToySequence, log_p: Tensor, k: int, *, path: bool) -> list[Events]:
    """The events of every cut, split by the path where there is one."""
    cuts = safe_cuts(sequence)
    found = []
    for index, cut in enumerate(cuts):
        events = events_at(sequence, log_p, k, cut)
        cell = observed(sequence, events, cut)
        if path and index + 1 < len(cuts) and cell is not None:
            student, teacher = chunk_logs(sequence, log_p, k, cut, cuts[index + 1])
            split = {"path": student.exp(), "rest": events.student.pop(cell) - student.exp()}
            known = events.known.pop(cell)
            events.student |= split
            events.known |= {"path": math.exp(teacher), "rest": max(known - math.exp(teacher), 0.0)}
            events.is_open |= {"path": False, "rest": events.is_open[cell]}
        found.append(events)
    return found


def forward_kl(events: Events) -> Tensor:
    """KL(teacher || student) of the completed teacher."""
    total = torch.zeros((), dtype=torch.float64)
    for cell, q in complete(events).items():
        if q > 0:
            total = total + q * (math.log(q) - events.student[cell].log())
    return total

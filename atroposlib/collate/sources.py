"""What the losses of a run read of a group, and which of its teachers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from atroposlib.collate.across import TokenizerPair
from atroposlib.collate.signals import REFERENCE
from atroposlib.errors import ConfigError
from atroposlib.types import Group, Targets, TeacherTargets

if TYPE_CHECKING:
    from atroposlib.collate.sequences import TrainSequence

_Said = TypeVar("_Said")

PLAIN_TEACHER = "teacher"
"""Name of whoever said ``distill_token_ids`` where no entry of ``teachers`` did."""

PROJECTED = "projected"
"""The same beside teachers with another tokenizer: their words, where one student id says them exactly."""


@dataclass(frozen=True, slots=True)
class Source:
    """A teacher as its targets are trained with.

    Attributes:
        name: In the groups.
        weight: Of its losses.
        temperature: At which its logprobs were taken.
        tokenizer: Fingerprint of its tokenizer, where that is not the student's.
    """

    name: str
    weight: float = 1.0
    temperature: float = 1.0
    tokenizer: str = ""


def _no_pair(name: str, fingerprint: str) -> TokenizerPair:
    raise ValueError(f"nobody told which tokenizer teacher {name} has")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the losses of a run read of its groups.

    Attributes:
        rows: Whether some loss reads a teacher with the student's tokenizer.
        chunks: Whether some loss reads a teacher with another tokenizer.
        aligned: Whether some loss reads such a teacher as its columns came.
        pair_of: The tokenizers of student and teacher, by the teacher's name and its tokenizer's fingerprint.
        minimal_chunks: Whether some loss reads chunks that end where a token might have been longer.
        weights: Of teachers by name; they win over what groups say.
        newest: The student's step, which ages are counted from.
        signals: For each loss that reads signals alone, their names.
        with_rows: Which signals a token with a row may lack still.
        learned: Where logits predict the tokens of a sequence that a loss learns from; None for whatever has
            what the losses read.
        pairs: Whether some loss prefers one sequence of a group to another.
        pair_signals: What that loss reads besides.
    """

    rows: Callable[[Source], bool] = lambda source: source.name != REFERENCE
    chunks: Callable[[Source], bool] = lambda source: False
    aligned: Callable[[Source], bool] = lambda source: False
    pair_of: Callable[[str, str], TokenizerPair] = _no_pair
    minimal_chunks: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    newest: Callable[[], int] = lambda: 0
    signals: tuple[tuple[str, ...], ...] = ()
    with_rows: tuple[str, ...] = ()
    learned: Callable[[TrainSequence], NDArray[np.int64]] | None = None
    pairs: bool = False
    pair_signals: tuple[str, ...] = ()


def row_sources(group: Group, wanted: Wanted) -> list[tuple[Source, Targets]]:
    """The teachers with the student's tokenizer that are read."""
    found = [
        (_source(teacher.facts, wanted), teacher.targets)
        for teacher in group.teachers
        if teacher.targets is not None and teacher.tokens is None
    ]
    if group.targets is not None and not any(targets is group.targets for _, targets in found):
        others = any(teacher.tokens is not None for teacher in group.teachers)
        found.append((_source({"name": PROJECTED if others else PLAIN_TEACHER}, wanted), group.targets))
    return _of_own_names([one for one in found if one[0].weight and wanted.rows(one[0])])


class OtherTokens(NamedTuple):
    """What a teacher with another tokenizer said of a group, as in :class:`TeacherTargets`."""

    targets: Targets
    tokens: list[NDArray[np.int32]]
    student_chunk_id: list[NDArray[np.int32]]
    teacher_chunk_id: list[NDArray[np.int32]]


def chunk_sources(
    group: Group, wanted: Wanted, reads: Callable[[Source], bool]
) -> list[tuple[Source, OtherTokens]]:
    """The teachers with another tokenizer that are read, by what tells them."""
    found = [
        (replace(_source(entry.facts, wanted), tokenizer=_fingerprint(entry)), teacher)
        for entry in group.teachers
        if (teacher := _other_tokens(entry)) is not None
    ]
    return _of_own_names([one for one in found if one[0].weight and reads(one[0])])


def _of_own_names(found: list[tuple[Source, _Said]]) -> list[tuple[Source, _Said]]:
    """The same, where no two teachers of the group are told apart by nothing."""
    twice = [source.name for source, count in Counter(source for source, _ in found).items() if count > 1]
    if twice:
        raise ConfigError(
            "two teachers of a group have one name",
            where="teachers",
            got=twice[0],
            fix="have the environment give each teacher a name of its own",
        )
    return found


def _fingerprint(teacher: TeacherTargets) -> str:
    return str(teacher.facts.get("tokenizer_fingerprint") or "")


def _other_tokens(teacher: TeacherTargets) -> OtherTokens | None:
    """None where it said nothing, or said it of the student's own tokens."""
    targets, tokens = teacher.targets, teacher.tokens
    ours, theirs = teacher.student_chunk_id, teacher.teacher_chunk_id
    if targets is None or tokens is None or ours is None or theirs is None:
        return None
    return OtherTokens(targets, tokens, ours, theirs)


def _source(facts: Mapping[str, Any], wanted: Wanted) -> Source:
    name = str(facts.get("name", PLAIN_TEACHER))
    weight = wanted.weights.get(name)
    if weight is None:
        weight = _number(facts, "weight", name, "set it in the trainer's settings")
    return Source(name, weight, _number(facts, "temperature", name, "mend the environment"))


def _number(facts: Mapping[str, Any], key: str, name: str, fix: str) -> float:
    """A fact that is a finite number of 0 or more, and 1 where it is not told."""
    value = facts.get(key)
    if value is None:
        return 1.0
    if not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise ConfigError(
            "the groups say of a teacher what cannot be",
            where=f"teachers.{name}.{key}",
            got=value,
            expected="a finite number of 0 or more",
            fix=fix,
        )
    return float(value)

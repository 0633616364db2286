"""Components of two vocabularies, against a search written here, and against the measured figures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from atroposlib.align.tables.table import SPECIAL
from atroposlib.projection.kept import kept_quotient
from atroposlib.projection.quotient import Quotient, quotient, quotient_of
from atroposlib.projection.speller import Speller
from atroposlib.projection.splits import NO_ID, Splits, split
from tests.support.tokenizer_files import FAMILIES

SpellerOf = Callable[[str], Speller]
PAIRS = [(student, teacher) for student in sorted(FAMILIES) for teacher in sorted(FAMILIES)]


def searched(student: Speller, teacher: Speller) -> list[set[tuple[str, int]]]:
    """The components by a breadth-first search over first tokens and pairs of markers with one role."""
    neighbours: dict[tuple[str, int], set[tuple[str, int]]] = {}
    edges = [
        *((("s", u), ("t", int(v))) for u, v in enumerate(split(student, teacher).first)),
        *((("s", int(u)), ("t", v)) for v, u in enumerate(split(teacher, student).first)),
    ]
    names = student.vocabulary.names, teacher.vocabulary.names
    roles = [set(side.vocabulary.roles.values()) for side in (student, teacher)]
    for number, name in names[0].items():
        for other, theirs in names[1].items():
            if name == theirs and number not in roles[0] and other not in roles[1]:
                edges.append((("s", number), ("t", other)))
    ours, theirs = student.vocabulary.roles, teacher.vocabulary.roles
    edges += [
        (("s", ours[role]), ("t", theirs[role]))
        for role in ("bos", "eos", "end_of_turn")
        if role in {*ours} & {*theirs}
    ]
    for one, other in edges:
        if one[1] != NO_ID and other[1] != NO_ID:
            neighbours.setdefault(one, set()).add(other)
            neighbours.setdefault(other, set()).add(one)
    found = []
    left = set(neighbours)
    while left:
        reached, waiting = set(), [min(left)]
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting += neighbours[node]
        found.append(reached)
        left -= reached
    return found


def members(made: Quotient) -> list[set[tuple[str, int]]]:
    found: list[set[tuple[str, int]]] = [set() for _ in range(len(made))]
    for side, component in (("s", made.student), ("t", made.teacher)):
        for number, index in enumerate(component.tolist()):
            if index != NO_ID:
                found[index].add((side, number))
    return found


@pytest.mark.parametrize(("student", "teacher"), PAIRS)
def test_components_are_those_of_a_search(student: str, teacher: str, speller: SpellerOf) -> None:
    ours, theirs = speller(student), speller(teacher)
    made = quotient(ours, theirs)
    assert sorted(map(sorted, members(made))) == sorted(map(sorted, searched(ours, theirs)))
    assert made.student.dtype == made.teacher.dtype == np.int32


def test_a_vocabulary_with_itself_is_one_to_one(speller: SpellerOf) -> None:
    level = speller("byte_level")
    made = quotient(level, level)
    assert np.array_equal(made.student, made.teacher)
    assert (made.sizes() == 1).all()


def test_components_are_numbered_by_their_lowest_student_id(speller: SpellerOf) -> None:
    made = quotient(speller("byte_level"), speller("gemma_like"))
    lowest = [int(np.flatnonzero(made.student == index)[0]) for index in range(len(made))]
    assert lowest == sorted(lowest)


def test_every_component_has_both_sides(speller: SpellerOf) -> None:
    made = quotient(speller("unigram_never"), speller("byte_level"))
    assert (made.sizes() >= 1).all()
    assert (made.teacher == NO_ID).any()


@pytest.mark.parametrize(
    ("student", "teacher", "components", "single", "largest"),
    [
        ("llama3_1", "qwen3", 109_568, 101_734, (1, 843)),
        ("smollm2", "qwen3", 39_237, 29_206, (5, 5914)),
    ],
)
def test_real_vocabularies_have_the_measured_components(
    student: str,
    teacher: str,
    components: int,
    single: int,
    largest: tuple[int, int],
    real_speller: SpellerOf,
    real_splits: Callable[[str, str], Splits],
) -> None:
    """The figures were measured with a prototype that took normalised spellings too: a handful of tokens."""
    ours, theirs = real_speller(student), real_speller(teacher)
    there, back = real_splits(student, teacher), real_splits(teacher, student)
    made = quotient_of(ours.vocabulary, theirs.vocabulary, there, back)
    markers = set(made.student[ours.vocabulary.kinds == SPECIAL].tolist()) - {NO_ID}
    sizes = made.sizes()
    assert len(made) - len(markers) == pytest.approx(components, rel=1e-3)
    assert int((sizes == 1).all(axis=1).sum()) - len(markers) == pytest.approx(single, rel=1e-3)
    assert sizes[sizes.sum(axis=1).argmax()].tolist() == pytest.approx(largest, abs=1)


def test_the_second_time_it_is_read_from_disk(
    family_dir: Callable[[str], Path], cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = family_dir("byte_level"), family_dir("gemma_like")
    made = kept_quotient(*directories)
    assert len(list(cache_dir.with_name("quotients").iterdir())) == 1
    monkeypatch.delattr("atroposlib.projection.kept.quotient")
    kept = kept_quotient(*directories)
    assert np.array_equal(kept.student, made.student)
    assert np.array_equal(kept.teacher, made.teacher)


@pytest.mark.parametrize("damage", [b"", b"not a file of tensors", None])
def test_a_damaged_file_is_told_and_made_anew(
    damage: bytes | None,
    family_dir: Callable[[str], Path],
    cache_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    directories = family_dir("byte_level"), family_dir("gemma_like")
    made = kept_quotient(*directories)
    (file,) = cache_dir.with_name("quotients").iterdir()
    whole = file.read_bytes()
    # Without a damage of its own: one that is whole, but of other vocabularies.
    other = kept_quotient(family_dir("unigram_never"), directories[1])
    assert len(other.student) != len(made.student)
    (theirs,) = set(cache_dir.with_name("quotients").iterdir()) - {file}
    file.write_bytes(theirs.read_bytes() if damage is None else damage)
    with caplog.at_level(logging.WARNING):
        again = kept_quotient(*directories)
    assert "is damaged and is built anew" in caplog.text
    assert np.array_equal(again.student, made.student)
    assert file.read_bytes() == whole


def test_a_place_that_cannot_be_written_only_costs_the_time(
    family_dir: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    made = kept_quotient(family_dir("byte_level"), family_dir("gemma_like"), cache_dir=blocked)
    assert len(made) > 0
    assert "not kept for the next time" in caplog.text

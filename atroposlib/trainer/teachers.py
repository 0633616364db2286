"""Finds the tokenizers of teachers that have another one than the student."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from atroposlib.align.tables.cache import default_directory
from atroposlib.align.vocabulary import named_path, read_vocabulary
from atroposlib.collate.across import TokenizerPair
from atroposlib.config.trainer import TrainedTeacher
from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)

SERVED = "served_tokenizers"
"""Directory beside the byte tables where environments keep the tokenizers that servers hand out."""


class TeacherPairs:
    """The student's tokenizer beside each teacher's; each pair is read once.

    Args:
        student: Directory of the student.
        teachers: What the settings say of teachers.
    """

    def __init__(self, student: Path, teachers: Mapping[str, TrainedTeacher]) -> None:
        self._student = student
        self._teachers = teachers
        self._places: dict[tuple[str, str], Path] = {}
        self._pairs: dict[Path, TokenizerPair] = {}

    def of(self, name: str, fingerprint: str) -> TokenizerPair:
        """The pair of student and teacher.

        Args:
            name: The teacher's.
            fingerprint: Of its tokenizer, as its groups say; empty where they do not.

        Raises:
            ConfigError: The tokenizer is not at hand, is another one than the groups', or cannot be read.
        """
        if (name, fingerprint) not in self._places:
            place = self._named(name, fingerprint) or self._served(name, fingerprint)
            logger.info("teacher %s has the tokenizer in %s", name, place)
            self._places[name, fingerprint] = place
        place = self._places[name, fingerprint]
        if place not in self._pairs:
            self._pairs[place] = TokenizerPair.load(self._student, place)
        return self._pairs[place]

    def _named(self, name: str, fingerprint: str) -> Path | None:
        told = self._teachers.get(name)
        if told is None or told.tokenizer is None:
            return None
        place = named_path(told.tokenizer)
        found = read_vocabulary(place).fingerprint
        if fingerprint and found != fingerprint:
            raise ConfigError(
                "the groups were scored with another tokenizer",
                where=f"teachers.{name}.tokenizer",
                got=f"{told.tokenizer} with fingerprint {found}",
                expected=fingerprint,
                fix="name the tokenizer that the environment has for this teacher",
            )
        return place

    def _served(self, name: str, fingerprint: str) -> Path:
        for place in _served_tokenizers():
            if fingerprint and read_vocabulary(place).fingerprint == fingerprint:
                return place
        raise ConfigError(
            f"the tokenizer of teacher {name} is not the student's, and is not at hand",
            where=f"teachers.{name}.tokenizer",
            got=f"fingerprint {fingerprint or 'untold'}, in no directory of {_kept()}",
            fix=f"set teachers.{name}.tokenizer to a directory with tokenizer.json, or a hub id",
        )


def _kept() -> Path:
    return default_directory().with_name(SERVED)


def _served_tokenizers() -> Iterator[Path]:
    if _kept().is_dir():
        yield from sorted(path for path in _kept().iterdir() if (path / "tokenizer.json").is_file())

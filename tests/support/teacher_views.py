"""Encoders and viewers of real tokenizers, made once a session."""

from __future__ import annotations

import functools
from typing import Any

from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.viewer import TeacherViewer
from tests.support.real_tokenizers import byte_table, loaded


@functools.cache
def encoder_of(name: str) -> TextEncoder:
    """The encoder of a real tokenizer; skips the test where it is not here."""
    return TextEncoder(loaded(name), byte_table(name))


@functools.cache
def viewer(student: str, teacher: str) -> TeacherViewer:
    """What makes the views of that teacher for that student; skips the test where one is not here."""
    return viewer_with(student, teacher)


def viewer_with(student: str, teacher: str, **settings: Any) -> TeacherViewer:
    """The same with other settings than the usual."""
    return TeacherViewer(loaded(student), loaded(teacher), encoder=encoder_of(teacher), **settings)

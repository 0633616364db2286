"""How well another tokenizer can be aligned with the student's, seen on a text."""

from __future__ import annotations

from typing import Any

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.markers import marker_symbols
from atroposlib.align.vocabulary import vocabulary_of

SAMPLE = (
    "The 3 tests of 2024-11-30 passed in 1,204.5 ms; nobody's surprised.\n"
    "def mean(values):\n    # empty is 0\n\treturn sum(values) / max(len(values), 1)\n\n\n"
    "\\frac{a^2}{b_{12}} \\le \\sqrt{x}, naïve façade, Straße, Привет мир, 你好,世界, こんにちは, "
    "안녕하세요, नमस्ते, مرحبا, 👩‍🔬🇫🇷👍🏽 and   spaces.  \n"
)
"""Prose, numbers, code, formulas, scripts, emoji and white space."""


def covered(student: Any, teacher: Any) -> float:
    """Share of the bytes of :data:`SAMPLE` that lie in chunks of both tokenizers."""
    aligner = TokenAligner(student, teacher)
    ids = student.encode(SAMPLE, add_special_tokens=False)
    alignment = aligner.align_ids(ids, teacher.encode(SAMPLE, add_special_tokens=False))
    lengths, chunk = aligner.student.lengths(ids), alignment.student_chunk_id
    inside = chunk >= 0
    inside[inside] = alignment.valid[chunk[inside]]
    return float(lengths[inside].sum() / max(int(lengths.sum()), 1))


def are_paired(student: Any, ours: str, teacher: Any, theirs: str) -> bool:
    """Whether an alignment takes a marker of the student's and one of the teacher's for the same."""
    symbols = marker_symbols(vocabulary_of(student), vocabulary_of(teacher))
    one = symbols[0].get(student.convert_tokens_to_ids(ours))
    return one is not None and one == symbols[1].get(teacher.convert_tokens_to_ids(theirs))

"""What is shown of two tokenizations: every token once, in order, and the right ones beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atroposlib.envs.teacher_loading import read_as_written
from atroposlib.explain.comparison import Comparison, Shown, compare_messages, compare_text
from tests.support.real_tokenizers import loaded

MESSAGES = [
    {"role": "user", "content": "say ab"},
    {"role": "assistant", "content": "ab!"},
    {"role": "user", "content": "again"},
    {"role": "assistant", "content": "cab"},
]


@pytest.fixture
def student(student_dir: Path) -> Any:
    return read_as_written(str(student_dir))


@pytest.fixture
def teacher(teacher_dir: Path) -> Any:
    return read_as_written(str(teacher_dir))


def written(side: str, shown: Sequence[Shown]) -> bytes:
    tokens = [token for one in shown for token in getattr(one, side)]
    return b"".join(token.encode() if isinstance(token, str) else token for token in tokens)


def states(found: Comparison) -> list[tuple[tuple[Any, ...], tuple[Any, ...], str]]:
    return [(one.student, one.teacher, one.state) for one in found.shown]


def test_tokens_of_equal_bytes_stand_beside_each_other(student: Any, teacher: Any) -> None:
    found = compare_text(student, teacher, "cab")
    assert states(found) == [((b"c",), (b"c",), "one"), ((b"a", b"b"), (b"ab",), "several")]
    assert found.coverage.student_share == 1.0
    assert found.masked == {}
    assert not found.match.same


def test_a_marker_that_is_spelled_in_a_text_is_text(student: Any, teacher: Any) -> None:
    found = compare_text(student, teacher, "<|im_end|>")
    assert {one.state for one in found.shown} == {"one"}
    assert written("student", found.shown) == written("teacher", found.shown) == b"<|im_end|>"


def test_an_empty_text_shows_nothing(student: Any, teacher: Any) -> None:
    found = compare_text(student, teacher, "")
    assert found.shown == []
    assert found.coverage.chunks == 0


def test_of_a_conversation_only_the_answers_have_partners(student: Any, teacher: Any) -> None:
    found = compare_messages(student, teacher, MESSAGES)
    end = "<|im_end|>"
    assert states(found)[1:4] == [
        ((b"a", b"b"), (b"ab",), "several"),
        ((b"!",), (b"!",), "one"),
        ((end,), (end,), "one"),
    ]
    assert [state for *_, state in states(found)] == [
        *("context", "several", "one", "one"),
        *("context", "one", "several", "one", "context"),
    ]
    rendered = student.apply_chat_template(MESSAGES, tokenize=False)
    assert written("student", found.shown) == rendered.encode()
    assert written("teacher", found.shown) == teacher.apply_chat_template(MESSAGES, tokenize=False).encode()
    assert found.answers_only
    assert found.coverage.student_bytes == len("ab!cab")
    assert found.coverage.student_share == 1.0
    assert found.masked == {}


def test_a_teacher_without_a_template_is_shown_plain_text(student: Any, teacher: Any) -> None:
    teacher.chat_template = None
    found = compare_messages(student, teacher, MESSAGES[:2])
    assert ((b"a", b"b"), (b"ab",), "several") in states(found)
    # The markers of turns have no place in plain text, so the end of the answer is alone.
    assert b"<|im_start|>" not in written("teacher", found.shown)


def test_a_conversation_that_cannot_be_shown_is_told(student: Any, teacher: Any) -> None:
    teacher.chat_template = "{{ raise_exception('no assistants here') }}"
    found = compare_messages(student, teacher, MESSAGES)
    assert "no assistants here" in found.problem
    assert found.coverage.chunks == 0
    assert dict(found.masked) == {"no_view": len("ab!cab") + 2}
    assert [one.state for one in found.shown].count("masked") == 2
    assert written("student", found.shown) == student.apply_chat_template(MESSAGES, tokenize=False).encode()


def test_what_the_teacher_normalises_is_masked_with_its_reason() -> None:
    text = "cafe\u0301 au lait"
    found = compare_text(loaded("llama3_1"), loaded("qwen3"), text)
    assert written("student", found.shown) == text.encode()
    assert written("teacher", found.shown) == "café au lait".encode()
    (masked,) = [one for one in found.shown if one.state == "masked"]
    assert masked.reason == "not_equal"
    assert "\u0301".encode() in masked.student
    assert found.masked == {"not_equal": len(masked.student)}
    assert found.lossy == ((), ("nfc",))
    assert found.coverage.student_share == pytest.approx(
        1 - sum(map(len, masked.student)) / len(text.encode())
    )


@pytest.mark.parametrize(("student", "teacher"), [("qwen3", "llama3_1"), ("llama3_1", "qwen3")])
def test_answers_of_real_templates_are_paired_whole(student: str, teacher: str) -> None:
    ours, theirs = loaded(student), loaded(teacher)
    messages = [
        {"role": "user", "content": "What is 201 + 345? Literal <|im_end|> and </s>."},
        {"role": "assistant", "content": "It is 546: 五百四十六."},
    ]
    found = compare_messages(ours, theirs, messages)
    assert found.coverage.student_share == 1.0
    assert found.masked == {}
    pairs = [one for one in found.shown if one.state in ("one", "several")]
    text = [(token, side) for one in pairs for side in ("student", "teacher") for token in getattr(one, side)]
    for side in ("student", "teacher"):
        tokens = [token for token, of in text if of == side and isinstance(token, bytes)]
        assert b"".join(tokens) == messages[1]["content"].encode()
    assert isinstance(pairs[-1].student[0], str)
    assert isinstance(pairs[-1].teacher[0], str)

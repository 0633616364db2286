"""Chunks as lines: nothing is lost, both sides are aligned, and what cannot be printed is spelled."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from atroposlib.explain.comparison import Shown
from atroposlib.explain.lines import LABEL_WIDTH, STYLES, legend, lines
from atroposlib.explain.spelling import spelled


def plain(shown: list[Shown], width: int = 60) -> list[str]:
    return [line.plain for line in lines(shown, width)]


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b" a", "·a"),
        (b"\n\t", "↵→"),
        ("é東".encode(), "é東"),
        (b"\xe2\x88", r"\xe2\x88"),
        (b"a\xff", r"a\xff"),
        ("\u0301e\u0301".encode(), "\\u0301e\u0301"),
        ("\u200d".encode(), r"\u200d"),
        (b"\x1b[31m", r"\x1b[31m"),
        (b"\r", r"\r"),
        ("<|im_end|>", "⟨<|im_end|>⟩"),
        (b"<|im_end|>", "<|im_end|>"),
    ],
)
def test_a_token_is_printable(token: bytes | str, text: str) -> None:
    assert spelled(token) == text
    assert "\x1b" not in spelled(token)


def test_both_sides_stand_under_each_other() -> None:
    shown = [
        Shown((b"The",), (b"The",), "one"),
        Shown((b" 201",), (b" ", b"2", b"0", b"1"), "several"),
        Shown(("<|im_end|>",), (), "alone", "lone_marker"),
    ]
    assert plain(shown) == [
        "student  The│·201   │⟨<|im_end|>⟩│",
        "teacher  The│·¦2¦0¦1│            │",
        "                     lone_marker",
        "",
    ]


def test_wide_characters_are_aligned_by_the_cells_they_take() -> None:
    shown = [
        Shown(("東京".encode(),), ("東".encode(), "京".encode()), "several"),
        Shown((b"!",), (b"!",), "one"),
    ]
    student, teacher, _ = plain(shown)
    assert cell_len(student) == cell_len(teacher)
    assert student == "student  東京 │!│"


def test_the_third_line_is_there_only_for_a_remark() -> None:
    one = Shown((b"a",), (b"a",), "one")
    assert len(plain([one])) == 3
    masked = Shown((b"e",), ("é".encode(),), "masked", "not_equal")
    assert plain([one, masked])[2] == "           not_equal"
    assert plain([Shown((b"u",), (), "context")])[2] == "         context"


def test_a_line_is_never_wider_than_the_terminal_and_loses_nothing() -> None:
    words = [f" word{number}".encode() for number in range(40)]
    shown = [Shown((word,), (word,), "one") for word in words]
    told = plain(shown, width=40)
    assert all(cell_len(line) <= 40 for line in told)
    for label in ("student", "teacher"):
        text = "".join(line[LABEL_WIDTH:] for line in told if line.startswith(label))
        assert text.replace("│", "").replace(" ", "") == "".join(map(spelled, words))


def test_a_chunk_that_is_wider_than_a_line_is_divided_between_tokens() -> None:
    tokens = (*(f"token{number}".encode() for number in range(12)), b"x" * 100)
    told = plain([Shown((b"a",), (b"a",), "one"), Shown(tokens, (b"short",), "context")], width=40)
    assert all(cell_len(line) <= 40 for line in told)
    text = "".join(line[LABEL_WIDTH:].strip().rstrip("│") for line in told[3:] if line.startswith("student"))
    assert text.replace("¦", "").replace(" ", "") == "".join(map(spelled, tokens))
    assert sum("context" in line for line in told) == 1


def test_a_newline_in_the_text_ends_the_line() -> None:
    shown = [Shown((b"a\n",), (b"a", b"\n"), "several"), Shown((b"b",), (b"b",), "one")]
    assert [line for line in plain(shown) if line.startswith("student")] == ["student  a↵ │", "student  b│"]


def test_every_state_has_a_colour_of_its_own() -> None:
    assert len(set(STYLES.values())) == len(STYLES)
    for state, style in STYLES.items():
        first, *_ = lines([Shown((b"a",), (b"a",), state)], 60)
        colours = [span.style for span in first.spans if first.plain[span.start : span.end].strip() == "a"]
        assert colours == [style]
        assert style in [span.style for span in legend().spans]

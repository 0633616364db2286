"""Two tokenizations as lines of a terminal: the student's above the teacher's, chunk beside chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from rich.text import Text

from atroposlib.align.explanation import Token
from atroposlib.explain.comparison import Shown, State
from atroposlib.explain.spelling import spelled

STYLES: dict[State, str] = {
    "one": "green",
    "several": "cyan",
    "alone": "yellow",
    "masked": "bold red",
    "context": "dim",
}
LEGEND: dict[State, str] = {
    "one": "one token to one",
    "several": "several tokens of the same bytes",
    "alone": "a marker that the other side lacks",
    "masked": "masked",
    "context": "context, not trained",
}
LABELS = ("student", "teacher", "")
LABEL_WIDTH = 9
BETWEEN_CHUNKS, BETWEEN_TOKENS = "│", "¦"


@dataclass(frozen=True, slots=True)
class _Column:
    """One chunk: what the student, the teacher and the remark below them say."""

    cells: tuple[str, str, str]
    style: str
    ends_line: bool

    @property
    def width(self) -> int:
        return max(map(cell_len, self.cells))


def lines(shown: Iterable[Shown], width: int) -> Iterator[Text]:
    """The chunks in blocks of two lines, or of three where one of them is masked.

    Args:
        shown: In order.
        width: Cells of a line.
    """
    room = width - LABEL_WIDTH - len(BETWEEN_CHUNKS)
    row: list[_Column] = []
    used = 0
    for one in shown:
        column = _column(one)
        if row and used + column.width > room:
            yield from _block(row)
            row, used = [], 0
        if column.width > room:
            yield from _long(one, room)
            continue
        row.append(column)
        used += column.width + len(BETWEEN_CHUNKS)
        if column.ends_line:
            yield from _block(row)
            row, used = [], 0
    if row:
        yield from _block(row)


def legend() -> Text:
    """What the colours mean."""
    told = Text()
    for state, meaning in LEGEND.items():
        told.append("■ ", STYLES[state]).append(f"{meaning}   ")
    return told


def _column(shown: Shown) -> _Column:
    cells = _side(shown.student), _side(shown.teacher), _remark(shown)
    ends_line = any(token.endswith(b"\n") for token in shown.student[-1:] if isinstance(token, bytes))
    return _Column(cells, STYLES[shown.state], ends_line)


def _side(tokens: tuple[Token, ...]) -> str:
    return BETWEEN_TOKENS.join(map(spelled, tokens))


def _remark(shown: Shown) -> str:
    return "context" if shown.state == "context" else shown.reason


def _block(row: list[_Column]) -> Iterator[Text]:
    for line, label in enumerate(LABELS):
        if not label and not any(column.cells[line] for column in row):
            continue
        told = Text().append(label.ljust(LABEL_WIDTH), "bold")
        for column in row:
            cell = column.cells[line]
            told.append(cell + " " * (column.width - cell_len(cell)), column.style)
            told.append(BETWEEN_CHUNKS if label else " ", "dim")
        told.rstrip()
        yield told
    yield Text()


def _long(shown: Shown, room: int) -> Iterator[Text]:
    """A chunk that is wider than a line, divided between tokens."""
    pieces = _pieces(shown.student, room), _pieces(shown.teacher, room), iter([_remark(shown)])
    for student, teacher, remark in zip_longest(*pieces, fillvalue=""):
        yield from _block([_Column((student, teacher, remark), STYLES[shown.state], True)])


def _pieces(tokens: tuple[Token, ...], room: int) -> Iterator[str]:
    piece = ""
    for token in tokens:
        for part in chop_cells(spelled(token), room):
            longer = f"{piece}{BETWEEN_TOKENS}{part}" if piece else part
            if cell_len(longer) > room:
                yield piece
                longer = part
            piece = longer
    if piece:
        yield piece

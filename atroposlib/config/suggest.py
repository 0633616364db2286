"""The names nearest to one that does not exist, for the "did you mean" of an error."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from atroposlib.errors import UsageError

MOST_SHOWN = 3


def edit_distance(left: str, right: str) -> int:
    """Least number of inserted, deleted, replaced or swapped neighbouring characters between two words."""
    before_last: list[int] = []
    last = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        row = [i]
        for j, b in enumerate(right, start=1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before_last[j - 2] + 1)
            row.append(cost)
        before_last, last = last, row
    return last[-1]


def _spelled(name: str) -> str:
    return name.replace("-", "_").lower()


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that `name` may stand for, best first; empty when none is near.

    Every known name one edit away is in the answer. Failing those, names a few edits away, names that
    begin with `name` (an abbreviation), and names that end in the same word (a forgotten namespace).
    """
    word = _spelled(name)
    distances = {candidate: edit_distance(word, _spelled(candidate)) for candidate in known}
    ordered = sorted(distances, key=lambda candidate: distances[candidate])
    one_edit = [candidate for candidate in ordered if distances[candidate] <= 1]
    if one_edit:
        return one_edit
    longer = [candidate for candidate in ordered if word and _spelled(candidate).startswith(word)]
    last_word = word.rpartition(".")[2]
    namesakes = [
        candidate
        for candidate in ordered
        if last_word and _spelled(candidate).rpartition(".")[2].startswith(last_word)
    ]
    limit = max(1, len(word) // 4)
    close = [candidate for candidate in ordered if distances[candidate] <= limit]
    return list(dict.fromkeys([*close, *longer, *namesakes]))[:MOST_SHOWN]


def did_you_mean(name: str, known: Iterable[str], *, mark: str = "") -> str | None:
    """The question for an error message, each name written after `mark`; None when no name is near."""
    names = [f"{mark}{candidate}" for candidate in nearest(name, known)]
    return f"did you mean {' or '.join(names)}?" if names else None


def require_command(name: str, known: Collection[str]) -> str:
    """:func:`require_name` for a command."""
    return require_name(name, known, "command")


def require_name(name: str, known: Collection[str], kind: str) -> str:
    """The name itself, when it is known.

    Args:
        name: As the user wrote it.
        known: All names.
        kind: What they name, in a word.

    Raises:
        UsageError: `usage.unknown_option`, with the nearest name.
    """
    if name in known:
        return name
    raise UsageError(
        f"no such {kind}",
        code="usage.unknown_option",
        where=name,
        expected=f"one of {', '.join(known)}",
        fix=did_you_mean(name, known),
    )

"""How a token is written for people: blanks as signs, and what is no character as its bytes."""

from __future__ import annotations

import unicodedata

from atroposlib.align.explanation import Token

SIGNS = {" ": "·", "\n": "↵", "\t": "→"}


def spelled(token: Token) -> str:
    """A token in printable characters; a marker in brackets that no token has by chance."""
    if isinstance(token, str):
        return f"⟨{token}⟩"
    text = token.decode(errors="backslashreplace")
    return "".join(_character(character, first=not index) for index, character in enumerate(text))


def _character(character: str, *, first: bool) -> str:
    # At the begin of a token it would join the sign that divides tokens.
    joins = first and unicodedata.category(character).startswith("M")
    if character in SIGNS:
        return SIGNS[character]
    return character if character.isprintable() and not joins else ascii(character)[1:-1]

"""Texts of many kinds for the alignment benchmark, the same in every run."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import pydoc_data.topics
import random
import tarfile
import typing
import unicodedata
from collections.abc import Callable
from pathlib import Path

WORDS = (
    *(
        "вода",
        "город",
        "почему",
        "ответ",
        "书",
        "朋友",
        "今天",
        "为什么",
        "お茶",
        "ありがとう",
        "カメラ",
        "질문",
    ),
    *("사람이", "하늘", "سؤال", "كتاب", "جواب", "שאלה", "מים", "प्रश्न", "पानी", "คำถาม", "ภูเขา", "câu", "hỏi"),
    *(
        "źródło",
        "pytanie",
        "überall",
        "Maßstab",
        "déjà",
        "naïve",
        "soru",
        "güneş",
        "ερώτηση",
        "νερό",
        "ንባብ",
        "ಪ್ರಶ್ನೆ",
    ),
)
EMOJI = ("👨‍👩‍👧", "🏴‍☠️", "🇯🇵", "👋🏾", "🛰️", "🧑🏻‍🔬", "♥️", "🙂", "🌋", "🍵", "🀅", "𝕬𝖇𝖈", "𐎀", "🫡", "3️⃣")
FORMULAS = (
    "\\frac{{{0}}}{{{1}}} \\ge \\sum_{{k=1}}^{{{2}}} y_k^2",
    "√({0}² + {1}²) ≈ {2}.5",
    "{0} · {1} = {2} ± 0.01",
    "∃x>0: |f(x) − {0}| ≤ {1}/{2}",
    "∇·E = {0}/ε₀, n ≥ {1}, p = 0.{2}",
)
BLANKS = (" ", "  ", "\t", "\n", "\n\n", "        ", "\r\n", "\t\t\t", "\n \n", "\u00a0", "\u2003")
COMPATIBLE = ("ﬁ", "①", "Ａ", "…", "㎏", "½", "™", "ﾊﾝ")


def _words(draw: random.Random) -> str:
    ending = draw.choice((" ", " ", " ", ", ", ". ", "? ", "。", f" {draw.randrange(3000)} "))
    return draw.choice(WORDS) + ending


def _emoji(draw: random.Random) -> str:
    return (
        draw.choice(WORDS)[:3] + " " + "".join(draw.choices(EMOJI, k=draw.randint(1, 3))) + draw.choice(" \n")
    )


def _formula(draw: random.Random) -> str:
    numbers = [draw.randrange(1, 10 ** draw.randint(1, 7)) for _ in range(3)]
    return draw.choice(FORMULAS).format(*numbers) + draw.choice(("; ", "\n", " "))


def _blanks(draw: random.Random) -> str:
    return draw.choice(("if", "y", "_b", "12", ".", "//", "end")) + draw.choice(BLANKS) * draw.randint(1, 3)


def _decomposed(draw: random.Random) -> str:
    """Text that NFC composes and NFKC replaces, among text that both keep."""
    plain = " ".join(
        draw.choice(("the", "answer", "to", "this", "was", "known")) for _ in range(draw.randint(1, 6))
    )
    changed = (
        draw.choice(COMPATIBLE) if draw.random() < 0.2 else unicodedata.normalize("NFD", draw.choice(WORDS))
    )
    return f"{plain} {changed} "


def _english() -> str:
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics))


def _code() -> str:
    return "\n".join(
        inspect.getsource(module) for module in (argparse, ast, dataclasses, tarfile, typing, inspect)
    )


WRITTEN: dict[str, Callable[[], str]] = {"english": _english, "code": _code}
MADE: dict[str, Callable[[random.Random], str]] = {
    "math": _formula,
    "multilingual": _words,
    "emoji": _emoji,
    "whitespace": _blanks,
    "decomposed": _decomposed,
}
CHANGED = "decomposed"
"""The kind that normalising tokenizers do not keep as it is."""


def texts(characters: int, directory: Path | None = None) -> dict[str, str]:
    """A text of every kind, or every file of a directory, up to a length.

    Args:
        characters: The most a text has; what is short is repeated with numbers in between.
        directory: Whose ``*.txt`` files are read instead, each a kind of its own.
    """
    if directory is not None:
        return {
            file.stem: file.read_text(encoding="utf-8")[:characters]
            for file in sorted(directory.glob("*.txt"))
        }
    found = {}
    for kind, write in WRITTEN.items():
        once = write()
        times = 1 + characters // len(once)
        found[kind] = "".join(f"{once}\n{number}\n" for number in range(times))[:characters]
    for kind, make in MADE.items():
        draw, parts, length = random.Random(kind), [], 0
        while length < characters:
            parts.append(make(draw))
            length += len(parts[-1])
        found[kind] = "".join(parts)[:characters]
    return found

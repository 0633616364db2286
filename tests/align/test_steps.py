"""What a tokenizer loses is declared, and nothing else is."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from atroposlib.align.tables.steps import LOSSY
from atroposlib.align.vocabulary import read_vocabulary
from tests.support.tokenizer_files import added, byte_level, write

TEXT = "  Éa e\u0301 ﬁ Ｘ th, 12\u00a0b "


def without_accents(text: str) -> str:
    return "".join(character for character in text if unicodedata.category(character) != "Mn")


NORMALIZERS: dict[str, tuple[dict[str, Any], Callable[[str], str]]] = {
    **{
        form.lower(): ({"type": form}, lambda text, form=form: unicodedata.normalize(form, text))
        for form in ("NFC", "NFD", "NFKC", "NFKD")
    },
    "lowercase": ({"type": "Lowercase"}, str.lower),
    "accents": ({"type": "StripAccents"}, without_accents),
    "strip": ({"type": "Strip", "strip_left": True, "strip_right": True}, str.strip),
    "replace": (
        {"type": "Replace", "pattern": {"String": "th"}, "content": "s"},
        lambda text: text.replace("th", "s"),
    ),
    "cleanup": ({"type": "Nmt"}, lambda text: text),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_normalizer_is_declared_and_its_result_comes_back(tmp_path: Path, name: str) -> None:
    normalizer, formula = NORMALIZERS[name]
    tokenizer = byte_level() | {"normalizer": {"type": "Sequence", "normalizers": [normalizer]}}
    vocabulary = read_vocabulary(write(tmp_path, tokenizer))
    assert vocabulary.lossy == (name,)
    assert (
        vocabulary.text(Tokenizer.from_str(json.dumps(tokenizer)).encode(TEXT).ids) == formula(TEXT).encode()
    )


PRE_TOKENIZERS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"type": "Whitespace"}, ("whitespace",)),
    ({"type": "WhitespaceSplit"}, ("whitespace",)),
    ({"type": "BertPreTokenizer"}, ("whitespace",)),
    ({"type": "CharDelimiterSplit", "delimiter": ","}, ("whitespace",)),
    ({"type": "Punctuation", "behavior": "Removed"}, ("whitespace",)),
    ({"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Removed", "invert": False}, ("whitespace",)),
    ({"type": "Split", "pattern": {"Regex": "\\S+"}, "behavior": "Removed", "invert": True}, ("unmatched",)),
    ({"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Isolated", "invert": False}, ()),
    ({"type": "Digits", "individual_digits": True}, ()),
    ({"type": "Punctuation", "behavior": "Isolated"}, ()),
    ({"type": "UnicodeScripts"}, ("whitespace",)),
]


@pytest.mark.parametrize(("part", "losses"), PRE_TOKENIZERS, ids=lambda value: str(value)[:50])
def test_a_pre_tokenizer_loses_what_is_declared(
    tmp_path: Path, part: dict[str, Any], losses: tuple[str, ...]
) -> None:
    tokenizer = byte_level()
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [part, tokenizer["pre_tokenizer"]]}
    vocabulary = read_vocabulary(write(tmp_path, tokenizer))
    assert vocabulary.lossy == losses
    came_back = vocabulary.text(Tokenizer.from_str(json.dumps(tokenizer)).encode(TEXT).ids) == TEXT.encode()
    assert came_back == (not losses)


def test_an_added_token_that_swallows_blanks_is_declared(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer["added_tokens"].append(added(262, "<mask>", lstrip=True))
    assert read_vocabulary(write(tmp_path, tokenizer)).lossy == ("added_strip",)


@pytest.mark.parametrize("strip_accents", [None, True, False])
def test_bert_s_accents_follow_its_letters_unless_told(tmp_path: Path, strip_accents: bool | None) -> None:
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": False,
        "handle_chinese_chars": False,
        "lowercase": True,
    }
    tokenizer = byte_level() | {"normalizer": normalizer | {"strip_accents": strip_accents}}
    vocabulary = read_vocabulary(write(tmp_path, tokenizer))
    assert vocabulary.lossy == (("lowercase",) if strip_accents is False else ("accents", "lowercase"))
    told = Tokenizer.from_str(json.dumps(tokenizer)).normalizer.normalize_str("É")
    assert told == ("é" if strip_accents is False else "e")


def test_every_loss_is_explained_in_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "alignment.md").read_text(encoding="utf-8")
    assert [name for name in LOSSY if f"`{name}`" not in page] == []

"""Tokenizers that a byte table cannot represent are refused, each with its reason and the place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atroposlib.align.vocabulary import read_vocabulary
from atroposlib.errors import ConfigError
from tests.support.tokenizer_files import added, byte_level, llama_like, unigram, wordpiece, write

Change = Callable[[dict[str, Any]], None]


def set_to(path: str, value: Any) -> Change:
    def change(tokenizer: dict[str, Any]) -> None:
        *outer, last = path.split(".")
        place = tokenizer
        for name in outer:
            place = place[name]
        place[last] = value

    return change


def add(token: dict[str, Any]) -> Change:
    return lambda tokenizer: tokenizer["added_tokens"].append(token)


STRIP_ENDS = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
LOWER_REPLACE = {"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "}
CASES: dict[str, tuple[dict[str, Any], Change, str, str]] = {
    "no decoder": (byte_level(), set_to("decoder", None), "#decoder", "space stands between"),
    "suffix decoder": (
        byte_level(),
        set_to("decoder", {"type": "BPEDecoder", "suffix": "</w>"}),
        "#decoder",
        "piece by piece",
    ),
    "ctc decoder": (byte_level(), set_to("decoder", {"type": "CTC"}), "#decoder", "piece by piece"),
    "stripped end": (
        llama_like(),
        lambda tokenizer: tokenizer["decoder"]["decoders"].append(STRIP_ENDS),
        "#decoder",
        "piece by piece",
    ),
    "pattern replaced": (
        llama_like(),
        lambda tokenizer: tokenizer["decoder"]["decoders"].insert(0, LOWER_REPLACE),
        "#decoder",
        "piece by piece",
    ),
    "byte pieces unread": (
        llama_like(),
        lambda tokenizer: tokenizer["decoder"]["decoders"].pop(1),
        "#decoder",
        "byte pieces",
    ),
    "another sign": (
        unigram(),
        set_to("decoder", {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"}),
        "#decoder",
        "does not take back",
    ),
    "byte signs unread": (byte_level(), set_to("decoder", wordpiece()["decoder"]), "#decoder", "take back"),
    "word suffix": (
        byte_level(),
        set_to("model.end_of_word_suffix", "</w>"),
        "end_of_word_suffix",
        "end of a word",
    ),
    "word prefix": (
        wordpiece(),
        set_to("decoder.prefix", "@@"),
        "continuing_subword_prefix",
        "inside a word",
    ),
    "unknown normalizer": (byte_level(), set_to("normalizer", {"type": "Rot13"}), "#normalizer", "not known"),
    "unknown pre-tokenizer": (
        byte_level(),
        set_to("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Shuffle"}]}),
        "#pre_tokenizer",
        "not known",
    ),
    "unknown model": (byte_level(), set_to("model.type", "Neural"), "#model", "unknown kind"),
    "two pieces, one id": (
        byte_level(),
        set_to("model.vocab.th", 7),
        "#model.vocab",
        "two pieces with one id",
    ),
    "one piece, two ids": (
        unigram(),
        lambda tokenizer: tokenizer["model"]["vocab"].append(["ab", -9.0]),
        "#model.vocab",
        "twice",
    ),
    "empty vocabulary": (unigram(), set_to("model.vocab", []), "#model.vocab", "without a vocabulary"),
    "added over a piece": (byte_level(), add(added(7, "<x>")), "#added_tokens", "contradict"),
    "added apart from its piece": (byte_level(), add(added(400, "th")), "#added_tokens", "contradict"),
    "an id beyond reason": (byte_level(), add(added(2**31, "<x>")), "#model.vocab", "out of all bounds"),
    "a negative id": (byte_level(), set_to("model.vocab.th", -5), "#model.vocab", "out of all bounds"),
    "vocabulary of another form": (
        byte_level(),
        set_to("model.vocab", 5),
        "tokenizer.json",
        "cannot be parsed",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_the_reason_and_the_place(tmp_path: Path, case: str) -> None:
    tokenizer, change, place, reason = CASES[case]
    tokenizer = copy.deepcopy(tokenizer)
    change(tokenizer)
    with pytest.raises(ConfigError, match=reason) as refused:
        read_vocabulary(write(tmp_path / "refused", tokenizer))
    assert refused.value.code == "align.unsupported"
    assert place in str(refused.value.where)
    assert not list(tmp_path.rglob("*.npz"))


def test_a_directory_without_a_fast_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        read_vocabulary(tmp_path)
    assert refused.value.code == "usage.file"
    assert "tokenizer.json" in str(refused.value)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, byte_level()) / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be parsed"):
        read_vocabulary(tmp_path)

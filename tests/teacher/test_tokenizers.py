"""Fingerprints and comparisons of tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atroposlib.align.vocabulary import read_vocabulary
from atroposlib.teacher.tokenizers import TokenizerMatch, compare, fingerprint
from tests.support.tiny import write_tokenizer
from tests.support.tokenizers import merging_tokenizer


def made_up(vocabulary: dict[str, int], **roles: int | None) -> Any:
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **roles}
    return SimpleNamespace(get_vocab=lambda: vocabulary, **ids)


def test_fingerprint_does_not_depend_on_the_order_of_the_vocabulary() -> None:
    first, second = made_up({"a": 0, "b": 1}), made_up({"b": 1, "a": 0})
    assert fingerprint(first) == fingerprint(second)
    assert len(fingerprint(first)) == 32
    assert set(fingerprint(first)) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "other",
    [
        made_up({"a": 0, "b": 2}),
        made_up({"a": 1, "b": 0}),
        made_up({"a": 0, "b": 1, "c": 2}),
        made_up({"a": 0, "b": 1}, eos_token_id=1),
        made_up({"a": 0, "b": 1}, pad_token_id=1),
        made_up({"a": 0, "b": 1}, bos_token_id=1),
    ],
)
def test_fingerprint_tells_every_other_id_token_and_role(other: Any) -> None:
    assert fingerprint(other) != fingerprint(made_up({"a": 0, "b": 1}))


def test_fingerprint_keeps_apart_tokens_that_would_run_together() -> None:
    assert fingerprint(made_up({"a,1,b": 0})) != fingerprint(made_up({"a": 0, "b": 1}))
    assert fingerprint(made_up({'a"], [1, "b': 0})) != fingerprint(made_up({"a": 0, "b": 1}))


def test_fingerprint_takes_tokens_that_are_no_valid_text() -> None:
    assert fingerprint(made_up({"\ud800": 0})) != fingerprint(made_up({"\ud801": 0}))


def test_same_tokenizer_has_everything_in_common() -> None:
    ours = made_up({"a": 0, "b": 1})
    assert compare(ours, made_up({"b": 1, "a": 0}, eos_token_id=1)) == TokenizerMatch("same", 1.0, 0)


def test_overlap_counts_the_students_tokens_whatever_their_ids() -> None:
    student, teacher = made_up({"a": 0, "b": 1, "c": 2, "d": 3}), made_up({"a": 0, "c": 1, "x": 2, "y": 3})
    # a stands for itself; ids 1, 2 and 3 for another token each.
    match = compare(student, teacher)
    assert (match.overlap, match.differing) == (0.5, 3)


def test_a_longer_vocabulary_is_another_one() -> None:
    short, long = made_up({"a": 0}), made_up({"a": 0, "b": 1})
    match = compare(short, long)
    assert (match.overlap, match.differing) == (1.0, 1)
    match = compare(long, short)
    assert (match.overlap, match.differing) == (0.5, 1)


def test_others_without_a_byte_table_are_refused_for_the_reason_that_there_is_none() -> None:
    match = compare(made_up({"a": 0}), made_up({"b": 0}))
    assert match.verdict == "refused"
    assert "slow tokenizer" in match.reason


def test_real_tokenizers_with_added_tokens(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    def tiny(name: str, **config: str) -> Any:
        directory = tmp_path / name
        directory.mkdir()
        write_tokenizer(directory)
        file = directory / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | config), encoding="utf-8")
        return PreTrainedTokenizerFast.from_pretrained(str(directory))

    one, again, base = tiny("one"), tiny("again"), tiny("base", eos_token="<|endoftext|>")
    merging = merging_tokenizer(tmp_path)
    assert fingerprint(one) == fingerprint(again)
    # A base and an instruction model: one vocabulary, two ends.
    assert compare(one, base).verdict == "same"
    assert fingerprint(one) != fingerprint(base)
    assert fingerprint(one) == read_vocabulary(tmp_path / "one").fingerprint
    # "ab" took id 256, so the three special tokens moved up by one: 256 is text beside a marker, and 259 is
    # a marker beside nothing. Of 257 and 258, which are markers in both, no bytes are compared.
    match = compare(one, merging)
    assert (match.verdict, match.overlap, match.differing) == ("alignable", 1.0, 2)

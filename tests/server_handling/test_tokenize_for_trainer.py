"""tokenize_for_trainer: plain ids, the right masks."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from tests.support.tokenizers import END, merging_tokenizer

CHAT = [
    {"role": "system", "content": "Sys"},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "One"},
    {"role": "user", "content": "More"},
    {"role": "assistant", "content": "Two"},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return merging_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def trained(result: dict[str, Any]) -> list[int]:
    return [token for token in result["masks"] if token != -100]


def test_tokens_are_plain_ids_of_the_rendered_chat(tokenizer: Any) -> None:
    result = tokenize_for_trainer(tokenizer, CHAT)
    assert result.keys() == {"tokens", "masks"}
    assert {type(token) for token in result["tokens"]} == {int}
    assert tokenizer.decode(result["tokens"]) == tokenizer.apply_chat_template(CHAT, tokenize=False)
    pairs = zip(result["tokens"], result["masks"], strict=True)
    assert all(mask in (-100, token) for token, mask in pairs)


def test_the_last_message_alone_is_trained(tokenizer: Any) -> None:
    assert trained(tokenize_for_trainer(tokenizer, CHAT)) == [*b"Two", END, 10]


def test_all_assistant_turns_are_trained_on_request(tokenizer: Any) -> None:
    result = tokenize_for_trainer(tokenizer, CHAT, train_on_all_assistant_turns=True)
    assert trained(result) == [*b"One", END, 10, *b"Two", END, 10]


@pytest.mark.parametrize("every", [False, True])
def test_after_length_no_end_of_turn_is_invented(tokenizer: Any, every: bool) -> None:
    result = tokenize_for_trainer(tokenizer, CHAT, train_on_all_assistant_turns=every, finish_reason="length")
    assert result["tokens"][-3:] == list(b"Two")
    assert trained(result)[-3:] == list(b"Two")


def test_messages_come_along_on_request(tokenizer: Any) -> None:
    assert tokenize_for_trainer(tokenizer, tuple(CHAT), include_messages=True)["messages"] == CHAT


def test_a_chat_of_one_message_is_trained_whole(tokenizer: Any) -> None:
    result = tokenize_for_trainer(tokenizer, CHAT[-1:])
    assert result["masks"] == result["tokens"]

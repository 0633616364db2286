"""Replies are found in the text of a chat, and refused where the text does not tell them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.scoring.chat import REASONS, Chat, RowError
from tests.support.tokenizers import AB, merging_tokenizer

START, END = 257, 258
USER, ASSISTANT = "user", "assistant"


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Chat:
    return Chat(tokenizer)


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def turn(role: str, text: str) -> list[int]:
    """The bytes of a turn as the tiny template writes it."""
    return [START, *f"{role}\n{text}".encode(), END, *b"\n"]


def of_messages(chat: Chat, *arguments: Any) -> tuple[list[int], list[int]]:
    encoded = chat.of_messages(*arguments)
    assert not encoded.untold
    return encoded.tokens, encoded.masks


def of_completion(chat: Chat, *arguments: Any) -> tuple[list[int], list[int]]:
    encoded = chat.of_completion(*arguments)
    return encoded.tokens, encoded.masks


def trained(masks: list[int]) -> bytes:
    """The trained tokens; 1 stands for the end of a turn."""
    return bytes(1 if token == END else token for token in masks if token != -100)


def test_every_reply_is_trained_through_the_token_that_ends_it(chat: Chat) -> None:
    messages = [
        message("system", "be"),
        message(USER, "hi"),
        message(ASSISTANT, "yo\n"),
        message(USER, "é?"),
        message(ASSISTANT, "ok"),
    ]
    tokens, masks = of_messages(chat, messages)
    assert tokens == [token for one in messages for token in turn(one["role"], one["content"])]
    assert trained(masks) == b"yo\n\x01ok\x01"
    assert all(mask in (-100, token) for mask, token in zip(masks, tokens, strict=True))
    # The turn's head and the line feed after its end are the template's.
    begin = len(turn("system", "be") + turn(USER, "hi")) + len([START, *b"assistant\n"])
    assert [mask != -100 for mask in masks[begin - 1 : begin + 5]] == [False, True, True, True, True, False]


def test_two_replies_one_after_the_other_are_both_trained(chat: Chat) -> None:
    _, masks = of_messages(chat, [message(USER, "q"), message(ASSISTANT, "a"), message(ASSISTANT, "b")])
    assert trained(masks) == b"a\x01b\x01"


def test_an_end_of_turn_within_a_reply_does_not_end_it(chat: Chat) -> None:
    _, masks = of_messages(chat, [message(USER, "q"), message(ASSISTANT, "a<|im_end|>b")])
    assert trained(masks) == b"a\x01b\x01"


TRIMMING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DROPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content.split('/')[-1] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PICKY = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}x"
BREAKING = "{{ messages[0].content + 1 }}"


def with_template(tmp_path: Path, template: str) -> Chat:
    return Chat(merging_tokenizer(tmp_path, template))


def test_a_template_that_trims_replies_is_followed(tmp_path: Path) -> None:
    chat = with_template(tmp_path, TRIMMING)
    tokens, masks = of_messages(chat, [message(USER, " q "), message(ASSISTANT, " x  ")])
    assert [mask for mask in masks if mask != -100] == [ord("x"), 259]
    assert len(tokens) == len(masks)


def test_where_nothing_ends_a_turn_all_of_the_reply_is_trained(tmp_path: Path) -> None:
    _, masks = of_messages(with_template(tmp_path, NO_END), [message(USER, "q"), message(ASSISTANT, "x")])
    assert [mask for mask in masks if mask != -100] == list(b"x\n")


@pytest.mark.parametrize(
    ("template", "messages", "reason"),
    [
        (DROPPING, [message(USER, "q"), message(ASSISTANT, "why/x"), message(USER, "q")], "turns"),
        (PICKY, [message("system", "s"), message(ASSISTANT, "x")], "template"),
        (BREAKING, [message(USER, "s"), message(ASSISTANT, "x")], "template"),
        (TRIMMING, [message(USER, "q")], "no_reply"),
        (TRIMMING, [], "messages"),
        (TRIMMING, "text", "messages"),
        (TRIMMING, ["text"], "messages"),
        (TRIMMING, [{"content": "x"}], "messages"),
        (TRIMMING, [message(USER, [{"type": "image"}]), message(ASSISTANT, "x")], "messages"),
        # "a" of the role's line and "b" of the reply are one token here.
        (
            "{% for m in messages %}{{ m.role }}a{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}assistanta{% endif %}",
            [message(USER, "q"), message(ASSISTANT, "b")],
            "boundary",
        ),
    ],
)
def test_what_cannot_be_told_is_refused(tmp_path: Path, template: str, messages: Any, reason: str) -> None:
    chat = with_template(tmp_path, template)
    with pytest.raises(RowError) as caught:
        of_messages(chat, messages)
    assert caught.value.reason == reason
    assert caught.value.detail


def test_a_template_that_drops_earlier_reasoning_takes_a_chat_with_one_reply(tmp_path: Path) -> None:
    _, masks = of_messages(with_template(tmp_path, DROPPING), [message(USER, "q"), message(ASSISTANT, "w/x")])
    assert [mask for mask in masks if mask != -100] == [*b"w/x", 259]


def test_replies_that_the_template_shows_otherwise_are_left_out_and_counted(tmp_path: Path) -> None:
    messages = [
        message(USER, "q"),
        message(ASSISTANT, "w/x"),
        message(USER, "q"),
        message(ASSISTANT, "y"),
        message(USER, "q"),
        message(ASSISTANT, "v/z"),
    ]
    encoded = with_template(tmp_path, DROPPING).of_messages(messages)
    # The second reply has nothing to drop, so it is shown as it was given.
    assert [mask for mask in encoded.masks if mask != -100] == [ord("y"), 259, *b"v/z", 259]
    assert encoded.untold == {"turns": 1}


def test_a_reply_whose_begin_is_within_a_token_is_left_out_and_counted(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}a{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistanta{% endif %}"
    )
    messages = [message(USER, "q"), message(ASSISTANT, "b"), message(USER, "q"), message(ASSISTANT, "c")]
    encoded = with_template(tmp_path, template).of_messages(messages)
    assert [mask for mask in encoded.masks if mask != -100] == [ord("c"), 259]
    assert encoded.untold == {"boundary": 1}


def test_members_that_parquet_fills_with_null_are_not_there_for_the_template(tmp_path: Path) -> None:
    template = TRIMMING.replace("{{ m.role }}", "{{ 'tools' if m.calls is defined else m.role }}")
    plain = [message(USER, "q"), message(ASSISTANT, "x")]
    filled = [{**one, "calls": None} for one in plain]
    chat = with_template(tmp_path, template)
    assert of_messages(chat, filled) == of_messages(chat, plain)


def test_tools_reach_the_template(tmp_path: Path) -> None:
    chat = with_template(tmp_path, "{{ tools | length if tools else 'none' }}" + TRIMMING)
    tokens, _ = of_messages(chat, [message(USER, "q"), message(ASSISTANT, "x")], [{"name": "f"}])
    assert tokens[0] == ord("1")


def test_a_completion_is_trained_with_the_end_token(chat: Chat) -> None:
    tokens, masks = of_completion(chat, "Q: ", "yes")
    assert tokens == [*b"Q: yes", END]
    assert masks == [-100, -100, -100, *b"yes", END]


def test_an_end_token_that_is_there_is_not_added(chat: Chat) -> None:
    tokens, masks = of_completion(chat, "Q", "yes<|im_end|>")
    assert tokens == [*b"Qyes", END]
    assert trained(masks) == b"yes\x01"


def test_the_end_token_that_the_tokenizer_itself_adds_is_trained(tokenizer: Any) -> None:
    adding = deepcopy(tokenizer)
    ends = [("<|im_end|>", END)]
    adding.backend_tokenizer.post_processor = TemplateProcessing("$A <|im_end|>", special_tokens=ends)
    tokens, masks = of_completion(Chat(adding), "Q", "yes")
    assert tokens == [*b"Qyes", END]
    assert trained(masks) == b"yes\x01"


def test_a_token_over_the_end_of_the_prompt_is_refused(tmp_path: Path) -> None:
    chat = with_template(tmp_path, TRIMMING)
    assert of_completion(chat, "xa", "cb")[0][:4] == list(b"xacb")
    with pytest.raises(RowError) as caught:
        of_completion(chat, "xa", "bc")
    assert caught.value.reason == "boundary"


@pytest.fixture
def trimming_chat(tmp_path: Path) -> Chat:
    """Of a tokenizer that leaves spaces out of its tokens' places, as Llama 3's does; " t" is one token."""
    merging_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["vocab"]["Ġt"] = content["model"]["vocab"].pop("ab")
    content["model"]["merges"] = [["Ġ", "t"]]
    content["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    file.write_text(json.dumps(content), encoding="utf-8")
    return Chat(read_tokenizer(str(tmp_path)))


def test_spaces_within_a_reply_are_trained_where_the_tokenizer_leaves_them_out(trimming_chat: Chat) -> None:
    tokens, masks = of_completion(trimming_chat, "a", "  b \n t")
    assert tokens == [*b"a  b \n", AB, AB + 3]
    assert masks == [-100, *tokens[1:]]


def test_a_token_over_the_end_of_the_prompt_is_refused_where_its_space_is_left_out(
    trimming_chat: Chat,
) -> None:
    with pytest.raises(RowError) as caught:
        of_completion(trimming_chat, "a ", "t")
    assert caught.value.reason == "boundary"


def test_every_reason_says_what_it_means() -> None:
    assert all(meaning.endswith(".") for meaning in REASONS.values())

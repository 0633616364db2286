"""Renderings know which characters and tokens are whose content; right values are searched in the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.rendering import NO_MESSAGE, Rendering, encode_rendering, render
from atroposlib.errors import AlignError
from tests.support.tiny import CHAT_TEMPLATE
from tests.support.tokenizers import AB, merging_tokenizer

TRIMMING = CHAT_TEMPLATE.replace("message['content'] }}", "message['content'] | trim }}")
FORGETFUL = CHAT_TEMPLATE.replace(
    "message['content'] }}", "message['content'].split('</think>')[-1].lstrip('\n') }}"
)
PARTS = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}", "{% for part in message['content'] %}{{ part.text or '*' }}{% endfor %}"
)
REFUSING = "{{ raise_exception('no system messages') }}"


def say(*contents: Any) -> list[dict[str, Any]]:
    """A conversation of these contents."""
    return [{"role": ("user", "assistant")[index % 2], "content": one} for index, one in enumerate(contents)]


def said(rendering: Rendering) -> list[tuple[str, int | None]]:
    """The contents that were found, each with its message."""
    return [(piece.text, piece.message) for piece in rendering.pieces if piece.message is not None]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """ChatML over bytes, with one token for "ab"."""
    directory: Path = tmp_path_factory.mktemp("merging")
    return merging_tokenizer(directory)


@pytest.fixture(scope="module")
def encoder(tokenizer: Any) -> TextEncoder:
    """That tokenizer's."""
    return TextEncoder(tokenizer)


@pytest.mark.parametrize(
    "contents",
    [
        ("What?", "That."),
        ("a", "a", "a", "a"),
        ("<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>user"),
        ("user", "assistant", "\n", "im"),
        (" x ", "\n\n--\n", "<tool_response>1</tool_response>", "é👩‍👩 ."),
        ("qzx0k", "qzxqzx1k qzx"),
    ],
    ids=["plain", "same", "markers", "words of the template", "spaces", "our own words"],
)
def test_contents_are_found_where_the_template_puts_them(contents: tuple[str, ...], tokenizer: Any) -> None:
    messages = say(*contents)
    rendering = render(tokenizer, messages)
    assert rendering.text == tokenizer.apply_chat_template(messages, tokenize=False)
    expected = "".join(
        f"<|im_start|>{message['role']}\n\0{index}\0{message['content']}\0<|im_end|>\n"
        for index, message in enumerate(messages)
    )
    blank = [index for index, content in enumerate(contents) if not content.strip()]
    shown = "".join(
        piece.text if piece.message is None else f"\0{piece.message}\0{piece.text}\0"
        for piece in rendering.pieces
    )
    for index in blank:
        expected = expected.replace(f"\0{index}\0{contents[index]}\0", contents[index])
    assert shown == expected


def test_white_space_that_the_template_trims_is_no_part_of_the_content(tokenizer: Any) -> None:
    rendering = render(tokenizer, say(" \nyes  ", "no"), template=TRIMMING)
    assert said(rendering) == [("yes", 0), ("no", 1)]


def test_texts_in_lists_are_contents(tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]
    rendering = render(tokenizer, say(parts, [{"type": "text", "text": "three"}]), template=PARTS)
    assert said(rendering) == [("one", 0), ("two", 0), ("three", 1)]
    assert "one*two" in rendering.text


def test_a_content_that_the_template_changes_is_refused_by_its_place(tokenizer: Any) -> None:
    with pytest.raises(AlignError) as caught:
        render(tokenizer, say("Why?", "<think>so</think>\nthus"), template=FORGETFUL, side="teacher")
    assert (caught.value.code, caught.value.where) == ("align.content", "teacher message 1")


def test_of_a_changed_content_that_may_change_the_rest_is_found(tokenizer: Any) -> None:
    messages = say("Why?", "<think>so</think>\nthus")
    rendering = render(tokenizer, messages, template=FORGETFUL, verbatim=[0])
    assert said(rendering) == [("Why?", 0), ("thus", 1)]


def test_a_content_is_searched_where_words_in_it_change_the_template(tokenizer: Any) -> None:
    template = CHAT_TEMPLATE.replace(
        "{{ message['content'] }}", "{{ message['content'] if message['content'] | length < 9 else 'long' }}"
    )
    assert said(render(tokenizer, say("first", "second"), template=template)) == [("first", 0), ("second", 1)]
    with pytest.raises(AlignError, match="2 places"):
        render(tokenizer, say("same", "same"), template=template)


def test_a_template_that_refuses_is_told_with_its_words(tokenizer: Any) -> None:
    with pytest.raises(AlignError, match="no system messages") as caught:
        render(tokenizer, say("a"), template=REFUSING, side="student")
    assert (caught.value.code, caught.value.where) == ("align.template", "student")


def test_without_a_template_there_is_no_rendering(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(AlignError, match="no chat template"):
        render(tokenizer, say("a"))


def test_tokens_know_their_bytes_and_their_message(tokenizer: Any, encoder: TextEncoder) -> None:
    rendering = render(tokenizer, say("xab</s>", "é<|im_end|>", "b"))
    encoded = encode_rendering(encoder, rendering)
    raw = rendering.text.encode()
    written = [raw[begin:end] for begin, end in zip(encoded.begins, encoded.ends, strict=True)]
    assert b"".join(written) == raw
    names = {number: name.encode() for name, number in encoder.marker_names.items()}
    names[AB] = b"ab"
    assert written == [names.get(number, bytes((number % 256,))) for number in encoded.ids.tolist()]
    for index, content in enumerate(("xab</s>", "é<|im_end|>", "b")):
        of_it = np.flatnonzero(encoded.message == index)
        assert b"".join(written[at] for at in of_it).decode() == content
        assert of_it.tolist() == list(range(of_it[0], of_it[-1] + 1))
    assert (encoded.ids >= AB + 1).sum() == 6, "only the markers of the template"


def test_a_token_over_the_border_of_a_content_is_of_no_message(tokenizer: Any, encoder: TextEncoder) -> None:
    template = "{% for message in messages %}a{{ message['content'] }}a{% endfor %}"
    encoded = encode_rendering(encoder, render(tokenizer, say("bcab", "b"), template=template))
    assert encoded.ids.tolist() == [AB, ord("c"), AB, ord("a"), AB, ord("a")]
    assert encoded.message.tolist() == [NO_MESSAGE, 0, 0, NO_MESSAGE, NO_MESSAGE, NO_MESSAGE]


def test_a_rendering_without_text_has_no_tokens(tokenizer: Any, encoder: TextEncoder) -> None:
    encoded = encode_rendering(encoder, render(tokenizer, say("a"), template="{{ '' }}", verbatim=[]))
    assert len(encoded.ids) == len(encoded.message) == len(encoded.begins) == len(encoded.ends) == 0

"""Text and tokens: characters in pieces, stop strings, and tokenizers that are not what they declare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from atroposlib.modelserver.loading import load_tokenizer
from atroposlib.modelserver.progress import advance
from atroposlib.modelserver.sampling import new_generator
from atroposlib.modelserver.text import TextCodec
from atroposlib.modelserver.work import EndTokens, Job, SamplingOptions, Sequence, TokenScores
from tests.modelserver.conftest import Served
from tests.support.tiny import write_tokenizer

TEXT = "naïve 🙂 日本\n"


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return TextCodec(load_tokenizer(str(directory)))


def test_token_texts_join_to_the_text(codec: TextCodec) -> None:
    ids = codec.encode(TEXT, add_special_tokens=False)
    assert ids == list(TEXT.encode())
    assert "".join(codec.token_text(token, ids[:index]) for index, token in enumerate(ids)) == TEXT


def test_unfinished_character_has_no_text_until_its_last_token(codec: TextCodec) -> None:
    smile = list("🙂".encode())
    assert [codec.token_text(token, smile[:index]) for index, token in enumerate(smile)] == ["", "", "", "🙂"]


def test_text_of_a_token_may_begin_with_a_space(codec: TextCodec) -> None:
    assert codec.token_text(ord(" "), []) == " "


def test_stream_gives_the_text_of_a_continuation(codec: TextCodec) -> None:
    ids = codec.encode(TEXT, add_special_tokens=False)
    stream = codec.stream(ids[:3], skip_special_tokens=True)
    pieces = [stream.push(token) for token in [*ids[3:], 257]]
    assert "".join(pieces).endswith("ve 🙂 日本\n")
    assert "�" not in "".join(pieces[1:])


def test_stream_survives_bytes_that_are_no_text(codec: TextCodec) -> None:
    stream = codec.stream([65], skip_special_tokens=True)
    for token in [0xFF, 0xC3, 0xC3, 0xFE, 65]:
        stream.push(token)
    assert stream.push(66) == "B"


def generated(codec: TextCodec, text: str, **options: object) -> Sequence:
    """A sequence that has been given the bytes of ``text`` until it finished."""
    job = Job([65], SamplingOptions(**{"max_tokens": 100, **options}), done=lambda _: None)  # type: ignore[arg-type]
    sequence = Sequence(job, 0, new_generator(0), codec.stream([65], skip_special_tokens=True))
    for token in codec.encode(text, add_special_tokens=False):
        if not sequence.finished:
            advance(sequence, token, TokenScores([token], [0.0], 1), EndTokens(258, frozenset({256})), 1000)
    return sequence


def test_stop_string_cuts_the_text_and_keeps_the_tokens(codec: TextCodec) -> None:
    sequence = generated(codec, "one two three", stop=("three", "o t"))
    assert (sequence.text, sequence.finish_reason, sequence.stop_reason) == ("one tw", "stop", "o t")
    assert len(sequence.ids) == len("one two t")


def test_stop_string_may_be_kept(codec: TextCodec) -> None:
    sequence = generated(codec, "one two three", stop=("two",), include_stop_str_in_output=True)
    assert (sequence.text, sequence.stop_reason, len(sequence.ids)) == ("one two", "two", 7)


def test_stop_string_within_min_tokens_is_passed_over(codec: TextCodec) -> None:
    sequence = generated(codec, "ab ab ab", stop=("ab",), min_tokens=4)
    assert (sequence.text, len(sequence.ids)) == ("ab ", 5)


def test_stop_string_at_the_last_token_is_a_stop_and_not_a_length(codec: TextCodec) -> None:
    assert generated(codec, "abc", stop=("c",), max_tokens=3).finish_reason == "stop"
    assert generated(codec, "abd", stop=("c",), max_tokens=3).finish_reason == "length"


@pytest.mark.parametrize(
    ("special", "options", "finish", "reason"),
    [
        ("<|im_end|>", {}, "stop", None),
        ("<|endoftext|>", {}, "stop", 256),
        ("<|im_start|>", {"stop_token_ids": frozenset({257})}, "stop", 257),
        ("<|im_end|>", {"ignore_eos": True}, None, None),
        ("<|im_start|>", {}, None, None),
    ],
)
def test_end_tokens_tell_their_reason(
    codec: TextCodec, special: str, options: dict[str, object], finish: str | None, reason: int | None
) -> None:
    sequence = generated(codec, "ab" + special, **options)
    assert (sequence.finish_reason, sequence.stop_reason, sequence.text) == (finish, reason, "ab")


def test_tokenizer_is_the_file_and_not_its_declared_class(tmp_path: Path) -> None:
    """AutoTokenizer builds a Llama tokenizer from this declaration, with other ids."""
    write_tokenizer(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "LlamaTokenizer"})
    )
    codec = TextCodec(load_tokenizer(str(tmp_path)))
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (TEXT, "  x  3", "<|im_start|>user"):
        assert (
            codec.encode(text, add_special_tokens=False) == plain.encode(text, add_special_tokens=False).ids
        )


async def test_text_prompt_is_its_ids(tiny: Served) -> None:
    by_text, by_ids = [
        await tiny.complete(prompt, prompt_logprobs=1, max_tokens=3, temperature=0, return_token_ids=True)
        for prompt in ("Hi é", list("Hi é".encode()))
    ]
    assert by_text == by_ids


async def test_chat_prompt_is_the_rendered_template(tiny: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    reply = await tiny.post("/v1/chat/completions", messages=messages, max_tokens=2, return_token_ids=True)
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    expected = await tiny.post("/tokenize", prompt=text)
    assert reply["prompt_token_ids"] == expected["tokens"]
    assert expected["tokens"][0] == 257
    assert (await tiny.post("/tokenize", messages=messages))["tokens"] == expected["tokens"]


async def test_echo_gives_the_prompt_before_the_completion(tiny: Served) -> None:
    (plain,) = await tiny.complete("Hi there", max_tokens=6, temperature=0)
    (echoed,) = await tiny.complete("Hi there", max_tokens=6, temperature=0, echo=True)
    assert echoed["text"] == "Hi there" + plain["text"]


async def test_conversation_that_the_template_refuses_is_the_clients_mistake(tiny: Served) -> None:
    tiny.model.codec._tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    reply = await tiny.client.post("/v1/chat/completions", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["message"]) == (
        400,
        "BadRequestError",
        "roles must alternate",
    )

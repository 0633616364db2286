"""Turns are read back from ids; the right ones are those that were rendered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.align.views.encoding import TextEncoder
from atroposlib.align.views.rendering import encode_rendering, render
from atroposlib.align.views.turns import TurnReader
from atroposlib.align.vocabulary import vocabulary_of
from tests.support.teacher_views import encoder_of
from tests.support.tiny import CHAT_TEMPLATE
from tests.support.tokenizers import END, merging_tokenizer

LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'system' %}<|im_start|>[INST] <<SYS>>\n{{ m.content }}\n<</SYS>>"
    "\n\n{% elif m.role == 'user' %}{% if loop.index0 != 1 or messages[0].role != 'system' %}"
    "<|im_start|>[INST] {% endif %}{{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }} <|im_end|>{% else %}{{ raise_exception('role') }}"
    "{% endif %}{% endfor %}"
)
NO_SYSTEM = CHAT_TEMPLATE.replace(
    "{% for", "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for", 1
)
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}" + CHAT_TEMPLATE
)
FORMS = {
    "chatml": CHAT_TEMPLATE,
    "llama 2": LLAMA_2,
    "no system": NO_SYSTEM,
    "default system": DEFAULT_SYSTEM,
}

PIECES = st.sampled_from([*"ab \n<é[", "<|im_end|>", "<|im_start|>user\n"])
CONTENTS = st.lists(PIECES, min_size=1, max_size=8).map("".join).filter(lambda text: text.strip())


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, TextEncoder, TurnReader]]:
    """A tokenizer with the template of that form, its encoder and its reader of turns."""
    made: dict[str, tuple[Any, TextEncoder, TurnReader]] = {}

    def one(form: str) -> tuple[Any, TextEncoder, TurnReader]:
        if form not in made:
            directory: Path = tmp_path_factory.mktemp("turns")
            tokenizer = merging_tokenizer(directory, FORMS[form])
            made[form] = (tokenizer, TextEncoder(tokenizer), TurnReader(tokenizer, vocabulary_of(tokenizer)))
        return made[form]

    return one


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(contents=st.lists(CONTENTS, min_size=1, max_size=5), has_system=st.booleans())
def test_what_was_rendered_is_read_back(
    form: str, contents: list[str], has_system: bool, make: Callable[[str], Any]
) -> None:
    tokenizer, encoder, reader = make(form)
    roles = ["system"] * (has_system and form != "no system" and len(contents) > 1)
    roles += [("user", "assistant")[index % 2] for index in range(len(contents) - len(roles))]
    messages = [{"role": role, "content": one} for role, one in zip(roles, contents, strict=True)]
    encoded = encode_rendering(encoder, render(tokenizer, messages))
    turns = reader.read(encoded.ids)
    expected = list(zip(roles, contents, strict=True))
    if form == "llama 2" and roles[-1] == "user":
        # Where a question ends, the answer begins.
        expected.append(("assistant", ""))
    assert [(turn.role, turn.content.decode()) for turn in turns] == expected
    for index, turn in enumerate(turns):
        inside = [at for at, message in enumerate(encoded.message.tolist()) if message == index]
        end = len(encoded.ids)
        assert [turn.begin, turn.end] == ([inside[0], inside[-1] + 1] if inside else [end, end])


@pytest.mark.parametrize("form", ["chatml", "default system"])
def test_a_turn_that_is_cut_off_goes_on_to_the_end(form: str, make: Callable[[str], Any]) -> None:
    tokenizer, _, reader = make(form)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "b"}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    turns = reader.read([*ids, *b"xy"])
    assert [(turn.role, turn.content) for turn in turns] == [("user", b"b"), ("assistant", b"xy")]
    assert (turns[1].begin, turns[1].end) == (len(ids), len(ids) + 2)
    assert reader.read([*ids, *b"xy", END])[1].content == b"xy"
    assert reader.read(ids)[1].content == b""


def test_a_line_break_that_was_left_out_behind_a_turn_does_not_matter(make: Callable[[str], Any]) -> None:
    tokenizer, _, reader = make("chatml")
    text = "<|im_start|>user\na<|im_end|><|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc"
    turns = reader.read(tokenizer.encode(text, add_special_tokens=False))
    assert [(turn.role, turn.content) for turn in turns] == [
        ("user", b"a"),
        ("assistant", b"b"),
        ("user", b"c"),
    ]


@pytest.mark.parametrize("text", ["", "plain text", "<|im_end|>", " <|im_start|>user\nb"])
def test_what_does_not_begin_as_the_template_does_has_no_turns(text: str, make: Callable[[str], Any]) -> None:
    tokenizer, _, reader = make("chatml")
    assert reader.read(tokenizer.encode(text, add_special_tokens=False)) == []


def test_without_a_template_there_are_no_turns(tmp_path: Path) -> None:
    tokenizer = merging_tokenizer(tmp_path)
    ids = tokenizer.encode("<|im_start|>user\na<|im_end|>\n", add_special_tokens=False)
    tokenizer.chat_template = None
    assert TurnReader(tokenizer, vocabulary_of(tokenizer)).read(ids) == []


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "smollm2", "deepseek_v3", "gemma3"])
def test_real_templates_are_read_back(name: str, loaded: Callable[[str], Any]) -> None:
    tokenizer, encoder = loaded(name), encoder_of(name)
    reader = TurnReader(tokenizer, encoder.vocabulary)
    said = [
        ("user", "Is <|im_end|> or </s> <｜Assistant <end_of_turn> a marker? 你好 👩‍👩"),
        ("assistant", "No.\n\n```py\nx = 1\n```"),
        ("user", "<|eot_id|>"),
        ("assistant", "user\nassistant"),
        ("user", "bye"),
    ]
    if name != "gemma3":
        # Gemma's system message is the begin of the first user turn.
        said.insert(0, ("system", "Be brief."))
    messages = [{"role": role, "content": content} for role, content in said]
    for prompted in (False, True):
        rendering = render(tokenizer, messages, add_generation_prompt=prompted)
        turns = reader.read(encode_rendering(encoder, rendering).ids)
        expected = said + [("assistant", "")] * prompted
        assert [(turn.role, turn.content.decode()) for turn in turns] == expected


def test_turns_with_tools_are_read_back(loaded: Callable[[str], Any]) -> None:
    tokenizer = loaded("qwen3")
    reader = TurnReader(tokenizer, encoder_of("qwen3").vocabulary)
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    messages = [
        {"role": "user", "content": "call"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "3"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, enable_thinking=False)
    turns = reader.read(tokenizer.encode(text, add_special_tokens=False))
    thought = "<think>\n\n</think>\n\n"
    assert [(turn.role, turn.content.decode()) for turn in turns] == [
        ("user", "call"),
        ("assistant", call),
        ("tool", "1"),
        ("tool", "2"),
        ("assistant", thought + "3"),
    ]

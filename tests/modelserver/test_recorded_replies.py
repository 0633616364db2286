"""The model server answers as the recorded vLLM 0.32 did: same keys, types and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.record_vllm import scrub, send
from tests.support.recorded import recordings
from tests.support.running_model_server import running_model_server
from tests.support.vllm_cases import CASES, Case, Limits

TINY = Limits("smollm2", max_model_len=512, vocab_size=300)
OTHER_WORDS = {"rpc_unknown_method", "suffix", "prompt_text_too_long", "chat_prompt_too_long"}
"""Refusals whose message differs: vLLM names its own classes, or has cut the text that it counts."""


@pytest.fixture(scope="module")
def url(tiny_model_dir: Path) -> Iterator[str]:
    with running_model_server(tiny_model_dir, served_model_name=TINY.model) as address:
        yield address


def cases(*groups: str) -> list[Any]:
    found = [(group, case) for group in groups for case in CASES[group](TINY)]
    return [pytest.param(group, case, id=f"{group}-{case.name}") for group, case in found]


@pytest.mark.parametrize(("group", "case"), cases("info", "completions", "chat"))
def test_reply_has_the_recorded_shape(url: str, group: str, case: Case) -> None:
    theirs = recordings(group)[case.name]
    ours = scrub(send(url, case), TINY.model)
    assert ours["status"] == theirs["status"]
    assert_same_shape(ours["body"], theirs["body"], case.name)


@pytest.mark.parametrize(("group", "case"), cases("refusals"))
def test_refusal_is_the_recorded_one(url: str, group: str, case: Case) -> None:
    theirs = recordings(group)[case.name]
    ours = send(url, case)
    assert ours["status"] == theirs["status"]
    assert_same_error(ours["body"]["error"], theirs["body"]["error"], case.name)


def test_refresh_routes_answer_as_recorded(url: str) -> None:
    for case in CASES["refresh"](TINY):
        theirs = recordings("refresh")[case.name]
        ours = send(url, case)
        assert ours["status"] == theirs["status"], case.name
        if "error" in theirs["body"]:
            assert_same_error(ours["body"]["error"], theirs["body"]["error"], case.name)
        else:
            assert ours["body"] == theirs["body"], case.name


def test_every_recording_has_a_case() -> None:
    for group, make in CASES.items():
        assert set(recordings(group)) == {case.name for case in make(TINY)}


def test_streaming_is_refused_by_name(url: str) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        reply = requests.post(url + path, json={**body, "stream": True}, timeout=30)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")


@pytest.mark.parametrize(
    ("field", "value"),
    [("repetition_penalty", 1.2), ("logit_bias", {"5": 1.0}), ("response_format", {"type": "json_object"})],
)
def test_what_is_not_supported_is_refused_rather_than_ignored(url: str, field: str, value: object) -> None:
    reply = requests.post(f"{url}/v1/completions", json={"prompt": "Hi", field: value}, timeout=30)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)


def test_message_without_role_is_refused_with_its_path(url: str) -> None:
    reply = requests.post(f"{url}/v1/chat/completions", json={"messages": [{"content": "Hi"}]}, timeout=30)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"]) == (400, "Bad Request", "body.messages.0.role")


def assert_same_error(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> None:
    for key in ("type", "param", "code"):
        assert ours[key] == theirs[key], key
    assert list(ours) == list(theirs)
    # The tiny server has other limits, so numbers differ; the words do not.
    if name not in OTHER_WORDS:
        assert _words(ours["message"]) == _words(theirs["message"])


def _words(message: str) -> str:
    return "".join(character for character in message if not character.isdigit())


def assert_same_shape(ours: Any, theirs: Any, path: str) -> None:
    """Same keys in the same order, null in the same places, same types; lists may differ in length."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), path
        if is_keyed_by_token(theirs, path):
            assert ours, path
            assert all(isinstance(key, str) for key in ours), path
            for member in ours.values():
                assert_same_shape(member, next(iter(theirs.values())), f"{path}.*")
            return
        assert list(ours) == list(theirs), path
        for key, value in theirs.items():
            assert_same_shape(ours[key], value, f"{path}.{key}")
    elif isinstance(theirs, list):
        assert isinstance(ours, list), path
        # A tiny model's tokens may be parts of characters, whose text and bytes are empty.
        assert bool(ours) == bool(theirs) or path.endswith(".bytes"), path
        if ours and theirs:
            assert_same_shape(ours[0], theirs[0], f"{path}[0]")
            assert_same_shape(ours[-1], theirs[-1], f"{path}[-1]")
    elif not path.endswith((".finish_reason", ".stop_reason", ".system_fingerprint")):
        assert type(ours) is type(theirs), path


def is_keyed_by_token(value: dict[str, Any], path: str) -> bool:
    """Whether the keys of an object are tokens: ids in prompt_logprobs, texts in top_logprobs."""
    return bool(value) and (all(key.isdigit() for key in value) or ".logprobs.top_logprobs[" in path)

"""The words of a server's refusal and the fix that goes with them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from atroposlib.teacher.refusals import MESSAGE_CHARACTERS, Refusal, read_refusal, remedy
from tests.support.recorded import recordings

REFUSALS = recordings("refusals")


def recorded(name: str) -> Refusal:
    reply = REFUSALS[name]
    return read_refusal(reply["status"], orjson.dumps(reply["body"]))


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_every_recorded_refusal_is_told_in_the_servers_words(name: str) -> None:
    error = REFUSALS[name]["body"]["error"]
    refusal = recorded(name)
    told = refusal.message.removesuffix("...")
    assert told
    assert " ".join(error["message"].split()).startswith(told)
    assert refusal.param == error["param"]
    assert "\n" not in refusal.message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":"Unauthorized"}', "Unauthorized"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b"upstream\nis down", "upstream is down"),
        (b"", ""),
        (b"null", ""),
        (b'{"error":{}}', ""),
        (b'{"error":null}', ""),
        (b"\xff", "\ufffd"),
    ],
)
def test_other_shapes_are_read_too(body: bytes, message: str) -> None:
    assert read_refusal(400, body) == Refusal(400, message, None)


def test_a_long_message_is_cut() -> None:
    assert len(read_refusal(500, b"x" * 10_000).message) == MESSAGE_CHARACTERS + 3


@pytest.mark.parametrize(
    ("name", "request_body", "fix"),
    [
        ("prompt_logprobs_too_many", {"prompt_logprobs": 21}, "--max-logprobs 21 or lower teacher_top_k"),
        (
            "prompt_logprobs_too_many",
            {"sampling_params": {"prompt_logprobs": 21}},
            "--max-logprobs 21 or lower teacher_top_k",
        ),
        ("prompt_logprobs_too_many", {}, "a larger --max-logprobs"),
        ("logprobs_too_many", {"echo": True, "logprobs": 21}, "--max-logprobs 21 or lower teacher_top_k"),
        ("prompt_too_long", {}, "--max-model-len"),
        ("prompt_fills_context", {}, "--max-model-len"),
        ("unknown_model", {}, "model_name"),
        ("id_out_of_vocabulary", {}, "another tokenizer"),
    ],
)
def test_the_fix_of_a_recorded_refusal(name: str, request_body: dict[str, Any], fix: str) -> None:
    told = remedy(recorded(name), request_body)
    assert told is not None
    assert fix in told


@pytest.mark.parametrize(
    "name", ["max_tokens_negative", "temperature_too_high", "prompt_number", "logprobs_too_many"]
)
def test_a_refusal_that_says_it_all_gets_no_fix(name: str) -> None:
    assert remedy(recorded(name), {}) is None


@pytest.mark.parametrize(
    ("status", "fix"), [(401, "api_key"), (403, "api_key"), (404, "base_url"), (307, "redirects")]
)
def test_the_fix_of_a_status_alone(status: int, fix: str) -> None:
    told = remedy(Refusal(status, "", None), {})
    assert told is not None
    assert fix in told

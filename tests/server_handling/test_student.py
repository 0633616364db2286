"""One sampling request: what is sent, and what an answer must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.envs.server_handling.student import STUDENT, chat_once, sample_once, text_once
from atroposlib.errors import StudentError
from atroposlib.teacher.persistence import Passing
from atroposlib.teacher.transport import open_session, peer_of
from atroposlib.types import Completion
from tests.support.fake_vllm import sample_choice
from tests.support.recorded import recorded_body
from tests.support.scripted_server import Reply, Request, scripted_server
from tests.support.vllm_cases import IDS

PROMPT = [5, 6, 7]


async def ask(once: Callable[..., Any], reply: Any, **params: Any) -> tuple[Any, Request]:
    """What ``once`` makes of ``reply``, and the request it sent."""
    async with scripted_server() as server, open_session() as session:
        server.then("/v1/completions", Reply(reply))
        server.then("/v1/chat/completions", Reply(reply))
        peer = peer_of(APIServerConfig(base_url=server.url, model_name="fake", timeout=20), STUDENT)
        result = await once(session, peer, params)
        return result, server.requests[0]


def reply_with(**fields: Any) -> dict[str, Any]:
    """A right answer to one sample after PROMPT, but for ``fields`` of its choice."""
    return {"choices": [sample_choice(PROMPT, 0, **fields)]}


async def test_ids_go_in_and_the_servers_ids_and_logprobs_come_out() -> None:
    reply = {"choices": [sample_choice(PROMPT, 1), sample_choice(PROMPT, 0)]}
    drawn, request = await ask(
        sample_once, reply, prompt=PROMPT, n=2, temperature=0.7, top_p=0.9, max_tokens=9
    )
    assert drawn == Completion(
        prompt_ids=PROMPT,
        token_ids=[[18, 41, 42], [19, 41, 42]],
        logprobs=[[-0.5, -1.0, -0.25], [-1.5, -1.0, -0.25]],
        texts=["<18><41><42>", "<19><41><42>"],
        finish_reasons=["stop", "stop"],
    )
    assert request.body == {
        "model": "fake",
        "prompt": PROMPT,
        "n": 2,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 9,
        "logprobs": 0,
        "return_token_ids": True,
        "stream": False,
    }


async def test_sampling_defaults_of_a_model_directory_do_not_shape_the_samples() -> None:
    _, request = await ask(sample_once, reply_with(), prompt=PROMPT)
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert neutral.items() <= request.body.items()


async def test_the_recorded_rollout_of_a_real_vllm_lines_up() -> None:
    body = recorded_body("completions", "rollout")
    drawn, _ = await ask(sample_once, body, prompt=IDS, n=2)
    assert drawn.prompt_ids == IDS
    assert drawn.token_ids == [choice["token_ids"] for choice in body["choices"]]
    assert drawn.logprobs == [choice["logprobs"]["token_logprobs"] for choice in body["choices"]]
    assert [len(ids) for ids in drawn.token_ids] == [len(values) for values in drawn.logprobs]


async def test_a_text_prompt_comes_back_as_the_servers_ids() -> None:
    drawn, request = await ask(sample_once, reply_with(), prompt="Hello")
    assert drawn.prompt_ids == PROMPT
    assert request.body["prompt"] == "Hello"


async def test_extra_body_goes_into_the_request() -> None:
    _, request = await ask(sample_once, reply_with(), prompt=PROMPT, extra_body={"top_k": 5})
    assert request.body["top_k"] == 5
    assert "extra_body" not in request.body


@pytest.mark.parametrize("field", ["token_ids", "prompt_token_ids"])
async def test_a_server_that_returns_no_token_ids_is_told_with_the_fix(field: str) -> None:
    with pytest.raises(StudentError, match="return_token_ids") as caught:
        await ask(sample_once, reply_with(**{field: None}), prompt=PROMPT)
    assert caught.value.code == "student.no_token_ids"


@pytest.mark.parametrize(
    "reply",
    [
        {},
        [],
        {"choices": None},
        {"choices": [7]},
        reply_with(prompt_token_ids=[5, 6, 8]),
        reply_with(token_ids=["18", 41, 42]),
        reply_with(token_ids=[-1, 41, 42]),
        reply_with(token_ids=[18, 41]),
        reply_with(logprobs=None),
        reply_with(logprobs={"token_logprobs": None}),
        reply_with(logprobs={"token_logprobs": [-1.0, -1.0]}),
        reply_with(logprobs={"token_logprobs": [-1.0, None, -1.0]}),
        reply_with(logprobs={"token_logprobs": [-1.0, 0.5, -1.0]}),
        reply_with(logprobs={"token_logprobs": [-1.0, -9999.0, -1.0]}),
        reply_with(logprobs={"token_logprobs": [-1.0, "-1.0", -1.0]}),
        reply_with(finish_reason=None),
        {"choices": [sample_choice(PROMPT, 1)]},
        {"choices": [{**sample_choice(PROMPT, 0), "index": None}]},
        {"choices": [sample_choice(PROMPT, 0), sample_choice(PROMPT, 0)]},
    ],
)
async def test_an_answer_that_does_not_line_up_is_refused(reply: Any) -> None:
    with pytest.raises(StudentError) as caught:
        await ask(sample_once, reply, prompt=PROMPT)
    assert caught.value.code == "student.bad_reply"


async def test_fewer_choices_than_asked_name_the_setting_for_it() -> None:
    with pytest.raises(StudentError, match="n_kwarg_is_ignored"):
        await ask(sample_once, reply_with(), prompt=PROMPT, n=2)


@pytest.mark.parametrize("once", [sample_once, text_once])
async def test_a_sample_broken_off_is_no_sample(once: Callable[..., Any]) -> None:
    with pytest.raises(Passing) as caught:
        await ask(once, reply_with(finish_reason="abort"), prompt=PROMPT)
    assert caught.value.kind == "interrupted"


async def test_the_recorded_chat_answer_has_openais_attributes() -> None:
    reply, request = await ask(
        chat_once, recorded_body("chat", "plain"), messages=[{"role": "user", "content": "x"}]
    )
    assert reply.choices[0].message.content == "Hello there"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 2
    assert reply.choices[0].token_ids is None
    assert request.path == "/v1/chat/completions"


async def test_the_recorded_text_answer_has_openais_attributes() -> None:
    body = recorded_body("completions", "text")
    reply, _ = await ask(text_once, body, prompt="Hello")
    assert reply.choices[0].text == body["choices"][0]["text"]
    assert reply.model == "smollm2"


@pytest.mark.parametrize("body", [{}, {"choices": [{}]}, {"choices": [{"index": 0, "text": 5}]}, []])
async def test_a_text_answer_of_another_shape_is_refused(body: Any) -> None:
    with pytest.raises(StudentError) as caught:
        await ask(text_once, body, prompt="Hello")
    assert caught.value.code == "student.bad_reply"

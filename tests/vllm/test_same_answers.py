"""The model server answers as a real vLLM with the same model does, and as the recordings say it does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.record_vllm import LIMITS, scrub, send
from tests.support.recorded import recordings
from tests.support.running_vllm import MAX_LOGPROBS, NAME
from tests.support.vllm_cases import CASES, Case
from tests.vllm.raw import post, prompt_logprobs, tokenize
from tests.vllm.same_answer import TOLERANCE, differences, is_drawn, row_differences, shape_differences

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TEXTS = (
    "Water boils at 100 degrees Celsius; at the top of a mountain it boils sooner, because the air is thin.",
    "def mean(values):\n    return sum(values) / len(values)\n",
    "<|im_start|>user\nWhat is 17 + 25?<|im_end|>\n<|im_start|>assistant\n17 + 25 = 42<|im_end|>\n",
)


def cases(*groups: str) -> list[Any]:
    found = [(group, case) for group in groups for case in CASES[group](LIMITS)]
    return [pytest.param(group, case, id=f"{group}-{case.name}") for group, case in found]


@pytest.mark.parametrize(("group", "case"), cases("info", "completions", "chat"))
def test_answer_is_vllms_and_the_recorded_one(vllm: str, model_server: str, group: str, case: Case) -> None:
    theirs = scrub(send(vllm, case), NAME)
    compare = shape_differences if is_drawn(case) else differences
    assert list(compare(scrub(send(model_server, case), NAME), theirs)) == []
    assert list(compare(recordings(group)[case.name], theirs)) == []


@pytest.mark.parametrize(("group", "case"), cases("refusals"))
def test_refusal_is_vllms_and_the_recorded_one(vllm: str, model_server: str, group: str, case: Case) -> None:
    theirs = refusal(send(vllm, case))
    assert refusal(send(model_server, case)) == theirs
    assert refusal(recordings(group)[case.name]) == theirs


@pytest.mark.parametrize(("group", "case"), cases("generate"))
def test_token_route_still_answers_as_recorded(vllm: str, group: str, case: Case) -> None:
    theirs, recorded = scrub(send(vllm, case), NAME), recordings(group)[case.name]
    if theirs["status"] == 200:
        assert list(differences(recorded, theirs)) == []
    else:
        assert refusal(recorded) == refusal(theirs)


def refusal(reply: dict[str, Any]) -> dict[str, Any]:
    """Status, and the members of the error that programs read."""
    error = reply["body"]["error"]
    return {"status": reply["status"], **{key: error[key] for key in ("type", "param", "code")}}


def test_refresh_routes_are_vllms_and_the_recorded_ones(vllm: str, model_server: str) -> None:
    for case in CASES["refresh"](LIMITS):
        replies = [send(vllm, case), send(model_server, case), recordings("refresh")[case.name]]
        if replies[0]["status"] != 200:
            replies = [refusal(reply) for reply in replies]
        assert replies[0] == replies[1] == replies[2], case.name
    for url in (vllm, model_server):
        post(url, "/update_weight_version", new_version="default")


@pytest.mark.parametrize("k", [0, 1, MAX_LOGPROBS])
@pytest.mark.parametrize("text", TEXTS)
def test_scores_are_vllms(vllm: str, model_server: str, text: str, k: int) -> None:
    ids = tokenize(vllm, text)
    assert tokenize(model_server, text) == ids
    ours, theirs = (prompt_logprobs(url, ids, k) for url in (model_server, vllm))
    for position, rows in enumerate(zip(ours, theirs, strict=True), start=1):
        assert list(row_differences(*rows)) == [], position


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_completion_is_vllms_up_to_the_first_tie(vllm: str, model_server: str, text: str) -> None:
    body = {"max_tokens": 24, "temperature": 0.0, "logprobs": 2, "return_token_ids": True}
    ours, theirs = (
        post(url, "/v1/completions", prompt=text, **body)["choices"][0] for url in (model_server, vllm)
    )
    best = [sorted(top.values(), reverse=True) for top in theirs["logprobs"]["top_logprobs"]]
    clear = next((index for index, top in enumerate(best) if top[0] - top[1] < TOLERANCE), len(best))
    assert clear >= 1
    assert ours["token_ids"][:clear] == theirs["token_ids"][:clear]
    told = ours["logprobs"]["token_logprobs"][:clear]
    assert told == pytest.approx(theirs["logprobs"]["token_logprobs"][:clear], abs=TOLERANCE)

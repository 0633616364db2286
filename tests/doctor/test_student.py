"""The student as its own teacher, and its samples."""

from __future__ import annotations

import aiohttp
import numpy as np
import pytest

from atroposlib.doctor import student
from atroposlib.doctor.check import Check
from atroposlib.doctor.student import check_own_teacher, check_samples
from atroposlib.doctor.subject import Scoring, Subject
from atroposlib.types import Completion
from tests.doctor.subjects import MadeUpRoute, scored, scoring, subject
from tests.support.fake_vllm import sample_body
from tests.support.scripted_server import Reply, ScriptedServer

PROMPT = [5, 6, 7]
SAMPLES = [[10, 11, 12], [], [13]]


def drawn(gap: float) -> Completion:
    """Samples of the made-up model whose logprobs are ``gap`` nats above those that scoring gives."""
    logprobs = [
        (scored(PROMPT + ids, 0, len(PROMPT))[1][:, 0] + np.float32(gap)).tolist() if ids else []
        for ids in SAMPLES
    ]
    return Completion(PROMPT, SAMPLES, logprobs, [""] * 3, ["stop"] * 3)


@pytest.fixture
def itself(monkeypatch: pytest.MonkeyPatch) -> Scoring:
    """A student's server that scores as the made-up model."""
    made = scoring(MadeUpRoute(), k=0)

    async def find(_: Subject) -> tuple[list[Check], Scoring]:
        return [], made

    monkeypatch.setattr(student, "find_scoring", find)
    return made


@pytest.mark.parametrize(("gap", "status"), [(0.0, "ok"), (0.01, "ok"), (0.1, "warn"), (-1.0, "fail")])
async def test_kl_of_the_student_to_itself(itself: Scoring, gap: float, status: str) -> None:
    [found] = await check_own_teacher(itself.subject, drawn(gap))
    assert found.status == status
    assert found.facts["kl_nats"] == pytest.approx(gap, abs=1e-5)
    assert found.facts["mean_difference_nats"] == pytest.approx(abs(gap), abs=1e-5)
    assert "over 4 sampled tokens" in found.detail


async def test_differences_that_cancel_out_are_seen(itself: Scoring) -> None:
    samples = drawn(0.0)
    samples.logprobs[0][:] = [
        samples.logprobs[0][0] + 1.0,
        samples.logprobs[0][1] - 1.0,
        *samples.logprobs[0][2:],
    ]
    [found] = await check_own_teacher(itself.subject, samples)
    assert found.facts["kl_nats"] == pytest.approx(0.0, abs=1e-5)
    assert found.status == "fail"


async def test_samples_are_drawn_with_their_ids(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    server.answer = lambda request: Reply(sample_body(request))
    found, completion = await check_samples(subject(server.url, session), list(range(100)))
    [request] = server.asked("/v1/completions")
    assert found.status == "ok"
    assert request.body["prompt"] == list(range(32))
    assert request.body["temperature"] == 1.0
    assert completion is not None
    assert len(completion.token_ids) == 4


async def test_a_server_without_ids_fails(server: ScriptedServer, session: aiohttp.ClientSession) -> None:
    server.answer = lambda request: Reply(sample_body(request, token_ids=None, prompt_token_ids=None))
    found, completion = await check_samples(subject(server.url, session), list(range(100)))
    assert (found.status, completion) == ("fail", None)
    assert "student.no_token_ids" in found.detail


async def test_a_student_that_samples_nothing_is_warned_of(
    server: ScriptedServer, session: aiohttp.ClientSession
) -> None:
    nothing = {"token_ids": [], "logprobs": {"token_logprobs": []}}
    server.answer = lambda request: Reply(sample_body(request, **nothing))
    found, completion = await check_samples(subject(server.url, session), list(range(100)))
    assert (found.status, completion) == ("warn", None)

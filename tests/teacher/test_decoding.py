"""Large replies are read in another process; small ones at once; neither stalls or outlives its owner."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import numpy as np
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher import completions, decoding
from atroposlib.teacher.decoding import OFF_LOOP_BYTES, byte_limit, read_reply, release, retain
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.transport import TEACHER, Peer
from atroposlib.types import TeacherScores
from tests.support.reply_render import body_of, expected, random_truth
from tests.support.reply_render import completions as render

PEER = Peer(TEACHER, "http://teacher", None, 20.0)
QUESTION = Question(np.arange(400, dtype=np.int32) % 60, k=40, start=2)
TRUTH = random_truth(np.random.default_rng(0), 400, 60)
LARGE = body_of(render(TRUTH, QUESTION))


@pytest.fixture(autouse=True)
async def _held() -> AsyncIterator[None]:
    retain()
    yield
    release()


def told_by(body: bytes, question: Question) -> TeacherScores:
    """Scores whose model is the number of the process that read them."""
    return TeacherScores(question.ids[:, None], question.ids[:, None], 1, str(os.getpid()))


def dies(body: bytes, question: Question) -> TeacherScores:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


async def test_a_large_reply_is_read_in_another_process() -> None:
    assert len(LARGE) > OFF_LOOP_BYTES
    scores = await read_reply(PEER, completions.read, LARGE, QUESTION, "fake 1.0")
    wanted = expected(TRUTH, QUESTION)
    assert np.array_equal(scores.ids, wanted.ids)
    assert np.array_equal(scores.logprobs, wanted.logprobs)
    assert scores.server == "fake 1.0"
    large = await read_reply(PEER, told_by, b" " * (OFF_LOOP_BYTES + 1), QUESTION)
    small = await read_reply(PEER, told_by, b" " * OFF_LOOP_BYTES, QUESTION)
    assert large.model != small.model == str(os.getpid())


async def test_a_refusal_comes_back_from_the_other_process_with_its_row_and_server() -> None:
    damaged = LARGE.replace(b'"rank":2,', b'"rank":3,', 1)
    with pytest.raises(TeacherError, match="rank") as caught:
        await read_reply(PEER, completions.read, damaged, QUESTION)
    assert caught.value.code == "teacher.bad_reply"
    assert str(caught.value.where) == "http://teacher rows[0]"


async def test_a_process_that_died_costs_one_reply() -> None:
    with pytest.raises(TeacherError) as caught:
        await read_reply(PEER, dies, b" " * (OFF_LOOP_BYTES + 1), QUESTION)
    assert caught.value.code == "teacher.worker_lost"
    assert (await read_reply(PEER, completions.read, LARGE, QUESTION)).start == 2


async def test_the_processes_end_with_their_last_user() -> None:
    await read_reply(PEER, told_by, b" " * (OFF_LOOP_BYTES + 1), QUESTION)
    retain()
    release()
    assert decoding._pool.offload is not None
    release()
    assert decoding._pool.offload is None
    retain()


def test_every_right_reply_is_within_the_limit() -> None:
    for k in (0, 1, 40):
        question = Question(QUESTION.ids, k)
        assert len(body_of(render(TRUTH, question))) < byte_limit(question)

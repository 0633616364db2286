"""What a real vLLM answered on its token route is read as its completions are, and its refusals are told."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher import completions, generate
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.refusals import read_refusal, remedy
from tests.support.recorded import recorded_body, recordings
from tests.support.vllm_cases import IDS


@pytest.mark.parametrize("start", [1, 5])
@pytest.mark.parametrize("k", [0, 4])
def test_arrays_are_those_of_the_recorded_completion(k: int, start: int) -> None:
    asked = Question(np.array(IDS, np.int32), k, start)
    name = f"prompt_logprobs_{k}"
    ours = generate.read(orjson.dumps(recorded_body("generate", name)), asked)
    theirs = completions.read(orjson.dumps(recorded_body("completions", name)), asked)
    np.testing.assert_array_equal(ours.ids, theirs.ids)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-5)
    assert ours.model == theirs.model == "smollm2"


def test_reply_to_a_longer_sequence_is_refused() -> None:
    body = orjson.dumps(recorded_body("generate", "prompt_logprobs_4"))
    with pytest.raises(TeacherError):
        generate.read(body, Question(np.array(IDS[:-1], np.int32), 4))


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("too_long", "--max-model-len"),
        ("one_too_long", "--max-model-len"),
        ("out_of_vocabulary", "another tokenizer"),
        ("prompt_logprobs_too_many", "--max-logprobs 21"),
    ],
)
def test_refusal_of_the_token_route_names_its_remedy(name: str, fix: str) -> None:
    reply = recordings("generate")[name]
    refusal = read_refusal(reply["status"], orjson.dumps(reply["body"]))
    assert fix in (remedy(refusal, {"prompt_logprobs": 21}) or "")

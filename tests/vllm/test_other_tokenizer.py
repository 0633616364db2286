"""A real vLLM as the teacher of a student with another tokenizer, which it hands out itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atroposlib.config.teacher import TeacherConfig
from atroposlib.envs.tokenizer import read_tokenizer
from tests.envs.test_several_teachers import Config, Env
from tests.support.running_vllm import NAME
from tests.support.tiny import write_tiny_model
from tests.vllm.conftest import Forward

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ANSWER = "Zoë had 201 cafés in 東京 👍🏽, and <|im_start|> is only text."
STUDENT_END = 258


async def test_chunks_hold_the_bytes_and_the_scores_of_a_forward_pass(
    vllm: str, model_dir: Path, forward: Forward, tmp_path: Path
) -> None:
    student = write_tiny_model(tmp_path / "student", seed=0)
    answer = [*ANSWER.encode(), STUDENT_END]
    prompt = read_tokenizer(str(student)).apply_chat_template(
        [{"role": "user", "content": "Who?"}], tokenize=True, add_generation_prompt=True
    )["input_ids"]
    group = {"tokens": [prompt + answer], "masks": [[-100] * len(prompt) + answer], "scores": [0.0]}
    config = Config(
        tokenizer_name=str(student), teacher_enabled=True, teacher_top_k=8, logprob_dtype="float32"
    )
    teachers = {"big": TeacherConfig(base_url=vllm, model_name=NAME)}
    env = Env(config, [], testing=True, teachers=teachers)
    try:
        complete = await env._attach_teacher_distillation(group)
    finally:
        await env.runtime.close()
        await env.close_servers()
    assert env.runtime.counters.masked == {}
    [entry] = complete["teachers"]
    ids = entry["tokens"][0].tolist()
    ours, theirs = entry["student_chunk_id"][0], entry["teacher_chunk_id"][0]
    assert (ours[len(prompt) :] >= 0).all()
    tokenizer = read_tokenizer(str(model_dir))
    # Two tokens can share a character, so the text is compared over all chunks.
    first, last = np.flatnonzero(theirs >= 0)[[0, -1]]
    assert tokenizer.decode(ids[first : last + 1]) == f"{ANSWER}<|im_end|>"
    exact = forward(model_dir, ids)
    for chunk in range(int(ours.max()) + 1):
        there = np.flatnonzero(theirs == chunk).tolist()
        said = entry["logprobs"][0][there, 0].sum()
        assert said == pytest.approx(sum(float(exact[at - 1, ids[at]]) for at in there), abs=1e-3)

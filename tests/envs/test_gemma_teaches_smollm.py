"""Two real models with different tokenizers: Gemma 3 270M scores what SmolLM2-135M sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from tests.envs.test_several_teachers import Config, Env
from tests.support.models import smollm_dir
from tests.support.real_gemma import gemma_dir
from tests.support.running_model_server import running_model_server

__all__ = ["gemma_dir", "smollm_dir"]

pytestmark = pytest.mark.model
K = 20
QUESTIONS = (
    "Write one sentence about the café «Zoë» in 東京 and an emoji.",
    "Tom has 201 apples and buys 45. How many apples has he now?",
    "Write a Python function that reverses a list.",
)


@pytest.fixture
async def env(smollm_dir: Path, gemma_dir: Path) -> AsyncIterator[Any]:
    """An environment on two model servers."""
    with (
        running_model_server(smollm_dir, dtype="float32", max_model_len=512) as student,
        running_model_server(gemma_dir, dtype="float32", max_model_len=512) as teacher,
    ):
        settings = Config(
            tokenizer_name=str(smollm_dir), teacher_enabled=True, teacher_top_k=K, logprob_dtype="float32"
        )
        servers = [
            APIServerConfig(base_url=student, model_name=str(smollm_dir), tokenizer_name=str(smollm_dir))
        ]
        gemma = TeacherConfig(base_url=teacher, model_name=str(gemma_dir), tokenizer_name=str(gemma_dir))
        made = Env(settings, servers, teachers={"gemma": gemma})
        try:
            yield made
        finally:
            await made.runtime.close()
            await made.close_servers()


async def rollouts(env: Any) -> Any:
    """A group of sampled answers; some end by themselves, some are cut."""
    group: dict[str, Any] = {"tokens": [], "masks": [], "scores": [], "messages": []}
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        async with env.server.managed_server(tokenizer=env.tokenizer) as managed:
            await managed.chat_completion(messages=messages, n=2, max_tokens=48, temperature=1.0, seed=6)
            for node in managed.get_state()["nodes"]:
                group["tokens"].append(node.tokens)
                group["masks"].append(node.masked_tokens)
                group["scores"].append(float(len(group["scores"])))
                group["messages"].append(messages)
    return group


def written(tokenizer: Any, number: int) -> bytes:
    """The bytes of a token by the library's own decoder; a question mark for a part of a character."""
    letter = tokenizer.encode("a", add_special_tokens=False)
    piece = tokenizer.convert_ids_to_tokens(number)
    if len(piece) == 6 and piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    if number in tokenizer.all_special_ids:
        return b""
    text = tokenizer.decode([*letter, number], clean_up_tokenization_spaces=False)[1:]
    return b"?" if "\ufffd" in text else text.encode()


async def test_chunks_carry_the_sums_of_a_forward_pass(env: Any, gemma_dir: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    group = await rollouts(env)
    complete = await env._attach_teacher_distillation(group)
    (entry,) = complete["teachers"]
    assert (entry["name"], entry["same_tokenizer"]) == ("gemma", False)
    assert complete["distill_token_ids"] is None
    model = AutoModelForCausalLM.from_pretrained(gemma_dir, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(gemma_dir)
    trained = covered = 0
    for index, ids in enumerate(group["tokens"]):
        tokens = np.asarray(entry["tokens"][index])
        ours = np.asarray(entry["student_chunk_id"][index])
        theirs = np.asarray(entry["teacher_chunk_id"][index])
        kept = np.asarray(group["masks"][index]) != -100
        assert not (ours[~kept] >= 0).any()
        with torch.no_grad():
            table = model(torch.tensor(tokens[None].astype(np.int64))).logits[0, :-1].log_softmax(-1).numpy()
        exact = np.append(0.0, table[np.arange(len(tokens) - 1), tokens[1:]])
        said = np.asarray(entry["logprobs"][index])[:, 0]
        chunks = sorted(set(ours[ours >= 0].tolist()))
        assert chunks == list(range(len(chunks))) == sorted(set(theirs[theirs >= 0].tolist()))
        for chunk in chunks:
            there = np.flatnonzero(theirs == chunk)
            assert abs(said[there].sum() - exact[there].sum()) < 1e-3
            mine = b"".join(written(env.tokenizer, int(ids[at])) for at in np.flatnonzero(ours == chunk))
            its = b"".join(written(tokenizer, int(tokens[at])) for at in there)
            assert mine == its or b"?" in mine + its
        trained += int(kept.sum())
        covered += int((ours >= 0).sum())
    # What is left out is the last word of answers that were cut.
    assert covered >= trained - 2 * len(group["tokens"])
    assert trained > 100

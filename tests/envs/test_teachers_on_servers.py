"""Teachers on real model servers: every value that a group carries is its teacher's own forward pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.yaml_file import load_yaml
from atroposlib.envs.commands import build_env
from atroposlib.envs.tokenizer import read_tokenizer
from tests.envs.test_several_teachers import Config, Env
from tests.support.running_model_server import running_model_server
from tests.support.tiny import write_tiny_model

K = 5
STUDENT_K = 4
TOLERANCE = 3e-4
QUESTION = [{"role": "user", "content": "How many?"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("teachers")
    names = ("student", "math", "code")
    return {name: write_tiny_model(folder / name, seed=seed) for seed, name in enumerate(names)}


@pytest.fixture(scope="module")
def urls(models: dict[str, Path]) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running_model_server(directory)) for name, directory in models.items()
        }


def config_of(models: dict[str, Path], urls: dict[str, str], name: str) -> dict[str, str]:
    directory = str(models[name])
    return {"base_url": urls[name], "model_name": directory, "tokenizer_name": str(models["student"])}


@pytest.fixture
async def env(models: dict[str, Path], urls: dict[str, str]) -> AsyncIterator[Any]:
    """Two named teachers; code has a system prompt of its own and weighs half."""
    teachers = {
        "math": TeacherConfig(**config_of(models, urls, "math")),
        "code": TeacherConfig(
            **config_of(models, urls, "code"), weight=0.5, top_k=2, system_prompt="Be sure."
        ),
    }
    settings = Config(
        tokenizer_name=str(models["student"]),
        teacher_enabled=True,
        teacher_top_k=K,
        student_top_k=STUDENT_K,
        logprob_dtype="float32",
    )
    made = Env(settings, [APIServerConfig(**config_of(models, urls, "student"))], teachers=teachers)
    try:
        yield made
    finally:
        await made.runtime.close()
        await made.close_servers()


def rendered(tokenizer: Any, messages: Any) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def group_of_replies(tokenizer: Any) -> Any:
    """Two replies to one question, the second in two turns."""
    prompt = rendered(tokenizer, QUESTION)
    replies = [[*tokenizer.encode("seven"), 258], [*tokenizer.encode("8"), 258]]
    between = tokenizer.encode("\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n")
    later = [*tokenizer.encode("yes"), 258]
    tokens = [prompt + replies[0], prompt + replies[1] + between + later]
    masks = [
        [-100] * len(prompt) + replies[0],
        [-100] * len(prompt) + replies[1] + [-100] * len(between) + later,
    ]
    return {"tokens": tokens, "masks": masks, "scores": [0.0, 1.0], "messages": [QUESTION, QUESTION]}


def forward(directory: Path, ids: list[int]) -> Any:
    """float64 logprobs [T - 1, V]; row p speaks of token p + 1."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).numpy()


def assert_rows(entry: Any, group: Any, table_of: Any, named: Any, k: int) -> None:
    """A kept row holds its token, the top-k and the ids ``named`` there, each with its logprob."""
    for index, (tokens, mask) in enumerate(zip(group["tokens"], group["masks"], strict=True)):
        table, shift = table_of(index)
        for position in range(len(tokens)):
            ids = np.asarray(entry["token_ids"][index][position])
            if mask[position] == -100:
                assert (ids == -1).all()
                continue
            exact, present = table[position + shift - 1], ids >= 0
            logprobs = np.asarray(entry["logprobs"][index][position])[present]
            columns = ids[present].tolist()
            best = np.argsort(-exact)[:k].tolist()
            assert columns[0] == tokens[position]
            assert len(set(columns)) == len(columns)
            assert set(columns) == {tokens[position], *best, *named(index, position)}
            np.testing.assert_allclose(logprobs, exact[columns], atol=TOLERANCE)


async def test_targets_of_all_teachers_are_their_own_forward_passes(
    env: Any, models: dict[str, Path]
) -> None:
    tokenizer = read_tokenizer(str(models["student"]))
    group = group_of_replies(tokenizer)
    out = await env._attach_teacher_distillation(group)
    math, code = out["teachers"]
    assert (math["name"], math["weight"], code["name"], code["weight"]) == ("math", 1.0, "code", 0.5)
    assert math["model"] == str(models["math"])
    assert len(math["tokenizer_fingerprint"]) == 32
    prompt = rendered(tokenizer, QUESTION)
    private = rendered(tokenizer, [{"role": "system", "content": "Be sure."}, *QUESTION])

    def math_reads(index: int) -> Any:
        return forward(models["math"], group["tokens"][index]), 0

    def code_reads(index: int) -> Any:
        ids = private + group["tokens"][index][len(prompt) :]
        return forward(models["code"], ids), len(private) - len(prompt)

    own = [forward(models["student"], ids) for ids in group["tokens"]]

    def named(index: int, position: int) -> list[int]:
        best = np.argsort(-own[index][position - 1])[:STUDENT_K]
        ids: list[int] = [token for token in best.tolist() if token != group["tokens"][index][position]]
        return ids

    assert_rows(math, group, math_reads, named, K)
    assert_rows(code, group, code_reads, named, 2)
    assert env.runtime.counters.masked == {}


async def test_same_group_again_is_answered_from_the_cache(env: Any, models: dict[str, Path]) -> None:
    group = group_of_replies(read_tokenizer(str(models["student"])))
    first = await env._attach_teacher_distillation(group)
    again = await env._attach_teacher_distillation(group)
    told = env._teacher_set.metrics(env.runtime.counters)
    assert told["teacher/math/cache_hits"] == 2
    assert told["teacher_token_frac/math"] == 1.0
    for one, other in zip(first["teachers"], again["teachers"], strict=True):
        for name in ("token_ids", "logprobs"):
            assert all(map(np.array_equal, one[name], other[name]))


async def test_options_and_yaml_make_the_same_teachers(
    models: dict[str, Path], urls: dict[str, str], tmp_path: Path
) -> None:
    math = config_of(models, urls, "math")
    file = tmp_path / "run.yaml"
    file.write_text(
        f"env: {{tokenizer_name: {models['student']}, teacher_top_k: {K}}}\n"
        f"teacher: {{base_url: {urls['student']}, tokenizer_name: {models['student']}}}\n"
        f"teachers:\n  math:\n    base_url: http://nowhere\n    model_name: {math['model_name']}\n"
        f"    tokenizer_name: {math['tokenizer_name']}\n"
    )
    flags = {"teachers": {"math": TeacherConfig(base_url=urls["math"])}, "testing": True}
    env: Any = build_env(Env, "serve", load_yaml(file), flags)
    try:
        await env.check_servers()
        assert list(env.teachers) == ["teacher", "math"]
        assert env.config.teacher_enabled
        out = await env._attach_teacher_distillation(group_of_replies(env.tokenizer))
        assert [entry["name"] for entry in out["teachers"]] == ["teacher", "math"]
    finally:
        await env.runtime.close()
        await env.close_servers()

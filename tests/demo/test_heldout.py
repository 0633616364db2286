"""The held-out measure against a plain float64 computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from atroposlib.demo.heldout import Text, continue_prompts, encode, load_model, logprobs, mean_kl
from atroposlib.errors import UsageError
from tests.support.tiny import write_tiny_model

TEXTS = [Text([1, 2, 3], [40, 41, 42, 43]), Text([9, 8], [70]), Text([5], [258, 3])]


@pytest.fixture(scope="module")
def teacher(tiny_model_dir: Path) -> PreTrainedModel:
    return load_model(tiny_model_dir, torch.device("cpu"))


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    directory = write_tiny_model(tmp_path_factory.mktemp("other") / "model", seed=1)
    return load_model(directory, torch.device("cpu"))


def dense_kl(teacher: PreTrainedModel, student: PreTrainedModel, texts: list[Text]) -> float:
    """Mean KL by a float64 forward pass and softmax of numpy, one token after the other."""
    values = []
    for text in texts:
        ids = torch.tensor([text.prompt + text.continuation])
        rows = []
        for model in (teacher, student):
            double = AutoModelForCausalLM.from_pretrained(model.name_or_path, dtype=torch.float64)
            logits = double(ids).logits[0].detach().numpy()
            exp = np.exp(logits - logits.max(-1, keepdims=True))
            rows.append(exp / exp.sum(-1, keepdims=True))
        p, q = rows
        before = range(len(text.prompt) - 1, ids.shape[1] - 1)
        values += [(p[position] * np.log(p[position] / q[position])).sum() for position in before]
    return float(np.mean(values))


def test_kl_equals_a_float64_computation(teacher: PreTrainedModel, student: PreTrainedModel) -> None:
    measured = mean_kl([logprobs(teacher, text) for text in TEXTS], student, TEXTS)
    assert measured.tokens == 7
    assert measured.nats_per_token == pytest.approx(dense_kl(teacher, student, TEXTS), rel=1e-5)
    assert measured.nats_per_token > 0.1


def test_a_model_has_no_distance_to_itself(teacher: PreTrainedModel) -> None:
    measured = mean_kl([logprobs(teacher, text) for text in TEXTS], teacher, TEXTS)
    assert measured.nats_per_token == pytest.approx(0.0, abs=1e-9)


def test_padding_does_not_change_a_greedy_continuation(teacher: PreTrainedModel) -> None:
    prompts = [[1, 2, 3, 4, 5, 6], [7], [8, 9, 10]]
    together = continue_prompts(teacher, prompts, 6, seed=None)
    alone = [continue_prompts(teacher, [prompt], 6, seed=None)[0] for prompt in prompts]
    assert together == alone
    ids = list(prompts[0])
    for token in together[0]:
        assert teacher(torch.tensor([ids])).logits[0, -1].argmax().item() == token
        ids.append(token)


def test_sampling_follows_the_seed_and_the_whole_vocabulary(teacher: PreTrainedModel) -> None:
    prompt = [291, 185, 195, 90, 218, 124]
    prompts = [prompt] * 2000
    first = continue_prompts(teacher, prompts, 1, seed=5)
    assert first == continue_prompts(teacher, prompts, 1, seed=5)
    assert first != continue_prompts(teacher, prompts, 1, seed=6)
    # Hugging Face's own default is top-k 50, which would never draw any of the others.
    p = torch.softmax(teacher(torch.tensor([prompt])).logits[0, -1], -1)
    others = set(range(300)) - set(p.topk(50).indices.tolist())
    expected = 2000 * p[list(others)].sum().item()
    drawn = sum(ids[0] in others for ids in first)
    assert drawn == pytest.approx(expected, abs=4 * expected**0.5)


def test_a_continuation_ends_with_its_end_token(teacher: PreTrainedModel) -> None:
    everything = continue_prompts(teacher, [[3]] * 300, 20, seed=0)
    ended = [ids for ids in everything if 258 in ids]
    assert ended
    assert all(ids.index(258) == len(ids) - 1 for ids in ended)


def test_a_chat_ends_where_the_answer_begins(tiny_model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    ids = encode(tokenizer, [{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_vocabularies_of_different_sizes_are_refused(teacher: PreTrainedModel) -> None:
    targets = [torch.zeros(len(text.continuation), 299) for text in TEXTS]
    with pytest.raises(UsageError, match="the same vocabulary"):
        mean_kl(targets, teacher, TEXTS)

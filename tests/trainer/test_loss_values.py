"""What a step computes is each loss's formula over the groups as they were posted, read off entry by entry.

The formulas are written out over dense log probabilities of the unpadded sequences, one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from atroposlib.collate.across import TeacherRows, TokenizerPair, chunk_arrays
from atroposlib.losses.across.quotient_distillation import quotient_distillation
from atroposlib.losses.across.targets import ChunkTargets
from atroposlib.trainer.heads import head_of, hidden_states
from tests.trainer.losses import STEP, World, step

Sequence = tuple[dict[str, Any], int, Tensor]
"""A posted group, the sequence's index in it, and log probabilities [T, V] of token p at row p."""

BETA, CLIP = 0.3, 0.2


def sequences(world: World, model: Any) -> Iterator[Sequence]:
    for group in world.raw:
        for index, tokens in enumerate(group["tokens"]):
            logits = model(input_ids=torch.tensor([tokens])).logits[0].double()
            yield group, index, torch.cat([logits[:1] * 0, logits[:-1].log_softmax(-1)])


def marked(group: dict[str, Any], index: int) -> list[int]:
    return [at for at, mask in enumerate(group["masks"][index]) if mask != -100]


def of_tokens(group: dict[str, Any], index: int, logprobs: Tensor) -> Tensor:
    """Log probabilities of the marked tokens."""
    at = marked(group, index)
    return logprobs[at, torch.tensor(group["tokens"][index])[at]]


def given(group: dict[str, Any], index: int, name: str) -> Tensor:
    return torch.tensor(group[name][index], dtype=torch.float64)[marked(group, index)]


def advantage(group: dict[str, Any], index: int) -> float:
    scores = torch.tensor(group["scores"], dtype=torch.float64)
    return float((scores[index] - scores.mean()) / scores.std(correction=0))


def forward_kl(world: World, model: Any) -> Tensor:
    terms = []
    for group, index, logprobs in sequences(world, model):
        if "distill_token_ids" not in group:
            continue
        for at in marked(group, index):
            q = torch.tensor(group["distill_logprobs"][index][at], dtype=torch.float64).float().double().exp()
            p = logprobs[at].exp()
            listed = p[group["distill_token_ids"][index][at]]
            tail = 1 - q.sum()
            terms.append((q * (q / listed).log()).sum() + tail * (tail / (1 - listed.sum())).log())
    return torch.stack(terms).mean()


def nll(world: World, model: Any) -> Tensor:
    return -torch.cat([of_tokens(*one) for one in sequences(world, model)]).mean()


def clipped(world: World, model: Any) -> Tensor:
    terms = []
    for group, index, logprobs in sequences(world, model):
        ratio = (of_tokens(group, index, logprobs) - given(group, index, "inference_logprobs")).exp()
        gain = advantage(group, index)
        terms.append(-torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain))
    return torch.cat(terms).mean()


def reverse_kl_gradient(world: World, model: Any) -> Tensor:
    """The clipped objective with log q - log p_sampled of the teacher's first column, by age."""
    terms = []
    for group, index, logprobs in sequences(world, model):
        if "distill_token_ids" not in group:
            continue
        sampled = given(group, index, "inference_logprobs")
        said = torch.tensor([group["distill_logprobs"][index][at][0] for at in marked(group, index)])
        gain = said.double() - sampled + 2.0 * advantage(group, index)
        ratio = (of_tokens(group, index, logprobs) - sampled).exp()
        weight = 0.5 ** (STEP - group["policy_version"])
        terms.append(-weight * torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain))
    return torch.cat(terms).mean()


def dpo(world: World, model: Any) -> Tensor:
    rewards: dict[str, dict[int, Tensor]] = {}
    for group, index, logprobs in sequences(world, model):
        gap = of_tokens(group, index, logprobs) - given(group, index, "ref_logprobs")
        rewards.setdefault(group["group_id"], {})[index] = gap.sum()
    terms = []
    for group in world.raw:
        ranked = sorted(range(len(group["scores"])), key=lambda index: group["scores"][index])
        margin = rewards[group["group_id"]][ranked[-1]] - rewards[group["group_id"]][ranked[0]]
        terms.append(-torch.nn.functional.logsigmoid(BETA * margin))
    return torch.stack(terms).mean()


def squared_gap(world: World, model: Any) -> Tensor:
    terms = []
    for group, index, logprobs in sequences(world, model):
        if "distill_token_ids" in group:
            said = torch.tensor([group["distill_logprobs"][index][at][0] for at in marked(group, index)])
            terms.append((of_tokens(group, index, logprobs) - said.double()) ** 2 / 2)
    return torch.cat(terms).mean()


def quotient(world: World, model: Any) -> Tensor:
    """The loss itself (its formula is tested beside it), on each sequence alone."""
    pair = TokenizerPair.load(world.student, world.teacher)
    total, cuts = torch.zeros((), dtype=torch.float64), 0
    for group in world.raw:
        for entry in group.get("teachers", []):
            for index, tokens in enumerate(group["tokens"]):
                ids, said = (torch.tensor(entry[name][index]) for name in ("token_ids", "logprobs"))
                arrays = chunk_arrays(
                    pair,
                    torch.tensor(tokens).numpy(),
                    (torch.tensor(group["masks"][index]) != -100).numpy(),
                    torch.tensor(entry["tokens"][index]).numpy(),
                    TeacherRows(0, ids.numpy(), said.numpy()),
                    torch.tensor(entry["student_chunk_id"][index]).numpy(),
                    torch.tensor(entry["teacher_chunk_id"][index]).numpy(),
                )
                states = hidden_states(model, torch.tensor([tokens]))[0][torch.from_numpy(arrays.positions)]
                loss, _ = quotient_distillation(
                    states, head_of(model), ChunkTargets.of(arrays), global_count=1
                )
                total, cuts = total + loss, cuts + arrays.cuts
    return total / cuts


FORMULAS: dict[str, tuple[Any, Callable[[World, Any], Tensor]]] = {
    "topk_distillation": ("topk_distillation", forward_kl),
    "quotient_distillation": ("quotient_distillation", quotient),
    "nll": ("nll", nll),
    "clipped_pg": ("clipped_pg", clipped),
    "policy_gradient": ("policy_gradient", clipped),
    "policy_gradient of both": (
        {"name": "policy_gradient", "advantages": "both", "reward_weight": 2.0, "staleness_decay": 0.5},
        reverse_kl_gradient,
    ),
    "dpo": ({"name": "dpo", "reference_policy_kl_penalty": BETA}, dpo),
    "kl_estimator": ("kl_estimator", squared_gap),
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_value_and_gradient_are_the_formula_s(kind: str, world: World) -> None:
    loss, formula = FORMULAS[kind]
    made = step(world, loss, micro_batch_size=5)
    model = AutoModelForCausalLM.from_pretrained(world.student).double()
    expected = formula(world, model)
    expected.backward()
    gradient = torch.cat([one.grad.flatten() for one in model.parameters()])
    assert math.isclose(made.result.loss, float(expected.detach()), rel_tol=1e-5)
    torch.testing.assert_close(made.gradient, gradient, rtol=0, atol=2e-5 * float(gradient.abs().max()))

"""Losses of a teacher's sparse columns, and of single tokens, under a mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from atroposlib.losses.generalized_kl import generalized_kl
from atroposlib.losses.groups import summed_replicated
from atroposlib.losses.kl_estimator import kl_estimator
from atroposlib.losses.linear import logits_of
from atroposlib.losses.next_token import next_token_logprobs
from atroposlib.losses.policy_gradient import policy_gradient
from atroposlib.losses.teacher_renormalized_kl import teacher_renormalized_kl
from atroposlib.losses.topk_distillation import topk_distillation, topk_distillation_from_logits
from atroposlib.losses.truncated_kl import truncated_kl
from tests.losses.parallel.batch import FACTOR, SIZES, VOCABULARY, Part, case_of, gradient_of, part_of
from tests.losses.parallel.mesh import Case, Mesh

DIVERGENCES = ("forward", "reverse", "mixed", "jsd")
SUPPORTS = ("tail", "renormalized", "zero_outside_topk")


def sparse_cases() -> dict[str, Case]:
    """One case for each divergence over each support, and what else changes the way of the figures."""
    cases: dict[str, Case] = {}
    for divergence, support in product(DIVERGENCES, SUPPORTS):
        if (divergence, support) != ("jsd", "zero_outside_topk"):
            loss = partial(_topk, divergence=divergence, support=support)
            cases[f"topk_distillation: {divergence}, {support}"] = partial(case_of, loss)
    variants: dict[str, dict[str, Any]] = {
        "recompute": {"recompute": True},
        "union support": {"divergence": "reverse", "union": True},
        "masked ids": {"masked_ids": torch.tensor([1, 7, 13, 23])},
        "temperature": {"support": "renormalized", "temperature": 2.0},
        "row weights": {"weighted": True},
    }
    for name, settings in variants.items():
        cases[f"topk_distillation: {name}"] = partial(case_of, partial(_topk, **settings))
    empty = (11, 0)
    cases["topk_distillation: a context rank without rows"] = partial(case_of, _topk, sizes=empty)
    cases["topk_distillation: from logits"] = _from_logits
    for function in (truncated_kl, generalized_kl, teacher_renormalized_kl):
        cases[function.__name__] = partial(case_of, partial(_columns, function))
    cases["policy_gradient"] = partial(case_of, _policy_gradient)
    cases["kl_estimator"] = partial(case_of, _kl_estimator)
    cases["all logits at once"] = partial(case_of, _all_logits)
    cases["next_token_logprobs"] = partial(case_of, _next_tokens)
    cases["next_token_logprobs: a context rank without rows"] = partial(case_of, _next_tokens, sizes=empty)
    return cases


def _topk(
    part: Part, count: int, *, union: bool = False, weighted: bool = False, **settings: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    if union:
        settings |= {"extra_ids": part.extra_ids, "extra_logprobs": part.extra_logprobs}
    if weighted:
        settings["row_weights"] = part.values.abs()
    return topk_distillation(
        part.hidden,
        part.head,
        part.ids,
        part.logprobs,
        global_count=count,
        groups=part.mesh.groups,
        chunk_rows=3,
        **settings,
    )


def _columns(function: Callable[..., Any], part: Part, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    result: tuple[Tensor, dict[str, Tensor]] = function(
        part.hidden,
        part.head,
        part.ids,
        part.logprobs,
        global_count=count,
        groups=part.mesh.groups,
        chunk_rows=3,
    )
    return result


def _policy_gradient(part: Part, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    return policy_gradient(
        part.hidden,
        part.head,
        part.next_ids,
        part.values,
        # Near enough to the student's that some ratios are clipped and some are not.
        -3.0 - 0.5 * part.values.abs(),
        row_weights=part.values.abs(),
        global_count=count,
        groups=part.mesh.groups,
        chunk_rows=3,
    )


def _kl_estimator(part: Part, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    return kl_estimator(
        part.hidden,
        part.head,
        part.next_ids,
        part.logprobs[:, 0],
        kind="k3",
        global_count=count,
        groups=part.mesh.groups,
        chunk_rows=3,
    )


def _all_logits(part: Part, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    """A softmax over the logits that exist whole, on a head with padding rows."""
    groups = part.mesh.groups
    logits = logits_of(part.hidden, replace(part.head, vocabulary=VOCABULARY - 3, soft_cap=2.0), groups)
    normaliser = summed_replicated(logits.exp().sum(-1), groups.tensor).log()
    return (part.values * normaliser).sum() / count, {}


def _next_tokens(part: Part, count: int) -> tuple[Tensor, dict[str, Tensor]]:
    logprobs = next_token_logprobs(
        part.hidden, part.head, part.next_ids, temperature=1.5, groups=part.mesh.groups, chunk_rows=3
    )
    return (part.values * logprobs).sum() / count, {"logprobs": logprobs.detach().sum()}


def _from_logits(mesh: Mesh) -> dict[str, Tensor]:
    """Logits cut along both axes: gradients of the logits themselves."""
    rows = part_of(mesh)
    draw = torch.Generator().manual_seed(5)
    whole = (2 * torch.randn(11, 24, generator=draw, dtype=torch.float64)).requires_grad_()
    logits = mesh.own_vocabulary(mesh.own_positions(whole, SIZES), dim=1)
    loss, metrics = topk_distillation_from_logits(
        logits, rows.ids, rows.logprobs, global_count=7, groups=mesh.groups, chunk_rows=3
    )
    (FACTOR * loss).backward()
    columns = Mesh(mesh.groups.__class__(mesh.groups.tensor, None))
    gradient = columns.whole_vocabulary(gradient_of(logits), dim=1)
    return {"loss": mesh.context_sum(loss), "logits": mesh.whole_positions(gradient)} | {
        f"metric {name}": mesh.context_sum(metric) for name, metric in metrics.items()
    }

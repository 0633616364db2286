"""The compiled bodies against plain torch, where a GPU is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atroposlib.losses.elementwise import bend, compiled_on_cuda, exponentiate
from atroposlib.losses.head import Head
from atroposlib.losses.topk_distillation import topk_distillation

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="compiles for CUDA; no GPU here")


def test_on_cpu_a_body_runs_as_it_is_written() -> None:
    seen = []

    @compiled_on_cuda
    def body(values: torch.Tensor, factor: float) -> torch.Tensor:
        seen.append(torch.compiler.is_compiling())
        return values * factor

    assert body(torch.ones(2), 3.0).tolist() == [3.0, 3.0]
    assert seen == [False]


@needs_cuda
@pytest.mark.parametrize("rows", [1, 7, 12])
@pytest.mark.parametrize("settings", [(True, 1.3, 5.0, 2.0), (False, 1.0, None, 2.0), (True, 1.0, None, 1.0)])
def test_compiled_bodies_equal_plain_torch_on_cuda(settings: Any, rows: int) -> None:
    with_bias, *rest = settings
    draw = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(rows, 5000, generator=draw, device="cuda") * 4
    bias = torch.randn(5000, generator=draw, device="cuda") if with_bias else None
    plain, compiled = logits.clone(), logits.clone()
    slope = bend.__wrapped__(plain, bias, *rest)
    torch.testing.assert_close(bend(compiled, bias, *rest), slope)
    torch.testing.assert_close(compiled, plain)
    plain -= plain.amax(-1, keepdim=True)
    compiled = plain.clone()
    total = exponentiate.__wrapped__(plain)
    torch.testing.assert_close(exponentiate(compiled), total)
    torch.testing.assert_close(compiled, plain)


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recompute", [False, True])
def test_loss_and_gradients_on_cuda_equal_those_on_cpu(recompute: bool, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    hidden, weight = (torch.randn(*shape, generator=draw).to(dtype) for shape in ((40, 64), (3000, 64)))
    ids = torch.stack([torch.randperm(3000, generator=draw)[:8] for _ in range(40)])
    logprobs = torch.log_softmax(torch.randn(40, 9, generator=draw), -1)[:, :8]
    found = []
    for device in ("cpu", "cuda"):
        leaves = [value.to(device).requires_grad_() for value in (hidden, weight)]
        loss, _ = topk_distillation(
            leaves[0],
            Head(leaves[1], scale=0.5, soft_cap=20.0),
            ids.to(device),
            logprobs.to(device),
            global_count=40,
            chunk_rows=16,
            recompute=recompute,
        )
        found.append([value.cpu().float() for value in (loss.detach(), *torch.autograd.grad(loss, leaves))])
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-4
    for on_cpu, on_cuda in zip(*found, strict=True):
        assert (on_cuda - on_cpu).norm() <= tolerance * on_cpu.norm()

"""What is done to every entry of a chunk of logits: plain torch on CPU, compiled into one pass each on CUDA.

On CUDA these passes over [n, V] are memory traffic alone, and each one that is fused away saves a read or a
write of the buffer. On CPU the matrix products outweigh them, and compiling costs seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def compiled_on_cuda(
    body: Callable[Concatenate[Tensor, Arguments], Result],
) -> Callable[Concatenate[Tensor, Arguments], Result]:
    """``body`` under torch.compile where its first argument is on CUDA; compiled at its first call there."""

    @cache
    def compiled() -> Callable[Concatenate[Tensor, Arguments], Result]:
        return torch.compile(body, dynamic=True)

    @wraps(body)
    def run(values: Tensor, /, *rest: Arguments.args, **named: Arguments.kwargs) -> Result:
        return (compiled() if values.is_cuda else body)(values, *rest, **named)

    return run


@compiled_on_cuda
def bend(
    logits: Tensor, bias: Tensor | None, scale: float, soft_cap: float | None, temperature: float
) -> Tensor | None:
    """Makes hidden . weight [n, v] the head's logits over ``temperature``, in place.

    Returns:
        The soft cap's derivative [n, v], or None without a cap.
    """
    if bias is not None:
        logits += bias
    if scale != 1.0:
        logits *= scale
    slope = None
    if soft_cap is not None:
        logits.div_(soft_cap).tanh_()
        slope = torch.addcmul(logits.new_ones(()), logits, logits, value=-1)
        logits.mul_(soft_cap)
    if temperature != 1.0:
        logits /= temperature
    return slope


@compiled_on_cuda
def exponentiate(shifted: Tensor) -> Tensor:
    """exp of every entry [n, v], in place; returns the sum of each row [n, 1]."""
    shifted.exp_()
    return shifted.sum(-1, keepdim=True)

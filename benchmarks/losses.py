"""Time, memory and gradient error of the loss of a sparse teacher: naive torch, ours, TRL's and Liger's.

All targets get the same inputs. Times come from rounds in which every target runs once after the other, so
that a disturbed machine disturbs all; memory from a process a target (what the pass adds at its peak, less
the two gradients); the error is that of the gradients against float64 on a small, peaked problem. ``gemms``
is the time of the three bare matrix products of the trained positions. TRL's and Liger's losses are measured
where they are installed. ``--check`` exits 1 when a goal is missed and says which in the last line.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from loss_targets import MODULES, OTHER_QUANTITY, TARGETS, Target, exact
from torch import Tensor
from torch.nn import functional

from atroposlib.losses.linear import CHUNK_BYTES

MIB = 2**20
CPU_SIZES = {"tokens": 2048, "hidden": 576, "vocab": 49_152, "k": 64}
CUDA_SIZES = {"tokens": 32_768, "hidden": 4096, "vocab": 151_936, "k": 64}
ROUNDS = 3


@dataclass(frozen=True)
class Problem:
    """One set of inputs; hidden states and weight take gradients."""

    hidden: Tensor
    weight: Tensor
    ids: Tensor
    logprobs: Tensor
    mask: Tensor

    def run(self, target: Target) -> float:
        """Forward and backward; the loss."""
        self.hidden.grad = self.weight.grad = None
        loss = target(self.hidden, self.weight, self.ids, self.logprobs, self.mask)
        loss.backward()
        return float(loss.detach())

    def bare_products(self, rows: int = 4096) -> None:
        """Logits, and the gradients of hidden states and weight, of the trained positions."""
        with torch.no_grad():
            for part in self.hidden[self.mask].split(rows):
                logits = part @ self.weight.t()
                logits @ self.weight
                logits.t() @ part


def problem(sizes: dict[str, int], masked: float, dtype: torch.dtype, device: str) -> Problem:
    """Random inputs."""
    tokens, vocabulary, k = sizes["tokens"], sizes["vocab"], sizes["k"]
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, sizes["hidden"], generator=draw)
    weight = torch.randn(vocabulary, sizes["hidden"], generator=draw) / math.sqrt(sizes["hidden"])
    # Ids that differ within a row, without a buffer of all of the vocabulary.
    step = vocabulary // k
    ids = torch.randint(step, (tokens, k), generator=draw) + torch.arange(k) * step
    logprobs = torch.log_softmax(2 * torch.randn(tokens, k, generator=draw), -1) + math.log(0.95)
    mask = torch.ones(tokens, dtype=torch.bool)
    mask[torch.randperm(tokens, generator=draw)[: int(tokens * masked)]] = False
    return Problem(
        hidden.to(device, dtype).requires_grad_(),
        weight.to(device, dtype).requires_grad_(),
        ids.to(device),
        logprobs.to(device, torch.promote_types(dtype, torch.float32)),
        mask.to(device),
    )


def seconds_of(function: Any, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_times(names: list[str], at: Problem, device: str) -> dict[str, list[float]]:
    """Seconds of each target, round by round; ``gemms`` beside them. The first round warms up."""
    rounds: dict[str, list[float]] = {name: [] for name in ["gemms", *names]}
    for turn in range(ROUNDS + 1):
        rounds["gemms"].append(seconds_of(at.bare_products, device))
        for name in names:
            rounds[name].append(seconds_of(lambda name=name: at.run(TARGETS[name]), device))
        if turn == 0:
            rounds = {name: [] for name in rounds}
    return rounds


def extra_bytes(name: str, at: Problem, device: str) -> int:
    """What one pass needs at its peak beyond inputs and float32 gradients. For a process of its own."""
    at.run(TARGETS[name])
    at.hidden.grad = at.weight.grad = None
    # Summed in float32 whatever the inputs are: no exact form does with less.
    gradients = sum(leaf.numel() * max(4, leaf.element_size()) for leaf in (at.hidden, at.weight))
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        at.run(TARGETS[name])
        return torch.cuda.max_memory_allocated() - before - gradients
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    at.run(TARGETS[name])
    return _resident("VmHWM") - before - gradients


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def gradient_error(name: str, device: str) -> float:
    """Relative error of dHidden or dWeight, the larger one, against float64.

    The student is as confident as a trained one: its tail falls to some 1e-9 over the rows.
    """
    leaves = []
    for dtype, target in ((torch.float64, exact), (torch.float32, TARGETS[name])):
        at = problem({"tokens": 64, "hidden": 256, "vocab": 2048, "k": 8}, 0.0, dtype, device)
        with torch.no_grad():
            listed = functional.normalize(at.weight[at.ids], dim=-1).sum(1)
            at.hidden.copy_(listed * torch.linspace(5.0, 25.0, 64, dtype=dtype, device=device)[:, None])
        at.run(target)
        leaves.append([leaf.grad for leaf in (at.hidden, at.weight)])
    pairs = zip(*leaves, strict=True)
    return max(float((got - right).norm() / right.norm()) for right, got in pairs)


def importable(name: str) -> bool:
    return name not in MODULES or importlib.util.find_spec(MODULES[name]) is not None


def rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    names = [name for name in TARGETS if importable(name)]
    at = problem(sizes_of(options), options.masked, getattr(torch, options.dtype), options.device)
    times = measure_times(names, at, options.device)
    medians = {name: statistics.median(values) for name, values in times.items()}
    del at
    found = []
    for name in names:
        command = [sys.executable, __file__, "--memory-of", name, *forwarded(options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        error = None if name in OTHER_QUANTITY else gradient_error(name, options.device)
        found.append(
            {
                "loss": name,
                "seconds": round(medians[name], 3),
                "of naive": round(_ratio(times, name, "naive"), 2),
                "of the three products": round(_ratio(times, name, "gemms"), 2),
                "extra MiB": round(int(done.stdout) / MIB),
                "gradient error": "another quantity" if error is None else f"{error:.1e}",
            }
        )
    return found


def _ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


def cpu_goals(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_name = {row["loss"]: row for row in found}
    memory = by_name["naive"]["extra MiB"]
    return [
        _goal("time of naive, gradient in forward", by_name["ours"]["of naive"], 0.6),
        _goal("time of naive, recompute", by_name["ours_recompute"]["of naive"], 0.75),
        _goal("memory of naive, gradient in forward", by_name["ours"]["extra MiB"] / memory, 1 / 8),
        _goal("memory of naive, recompute", by_name["ours_recompute"]["extra MiB"] / memory, 1 / 8),
        _goal("gradient error", float(by_name["ours"]["gradient error"]), 1e-5),
    ]


def cuda_goals(found: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    by_name = {row["loss"]: row for row in found}
    half = [
        statistics.median(
            measure_times(["ours"], problem(sizes_of(options), masked, torch.bfloat16, "cuda"), "cuda")[
                "ours"
            ]
        )
        for masked in (0.5, 0.0)
    ]
    # A chunk's buffer is float32: chunk x V x 8 bytes are two of them.
    buffer = CHUNK_BYTES["cuda"] / MIB
    return [
        _goal("time of the three products", by_name["ours"]["of the three products"], 1.35),
        _goal("memory of chunk x V x 8 bytes", by_name["ours"]["extra MiB"] / (2 * buffer), 1.3),
        _goal("time at half masked of unmasked", half[0] / half[1], 0.55),
        _goal("gradient error", float(by_name["ours"]["gradient error"]), 1e-5),
    ]


def _goal(name: str, value: float, goal: float) -> dict[str, Any]:
    return {"name": name, "value": round(value, 7), "goal": goal, "ok": value <= goal}


def sizes_of(options: argparse.Namespace) -> dict[str, int]:
    defaults = CUDA_SIZES if options.device == "cuda" else CPU_SIZES
    return {name: getattr(options, name) or size for name, size in defaults.items()}


def forwarded(options: argparse.Namespace) -> list[str]:
    arguments = ["--device", options.device, "--dtype", options.dtype, "--masked", str(options.masked)]
    for name, size in sizes_of(options).items():
        arguments += [f"--{name}", str(size)]
    return arguments


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", help="float32 on CPU, bfloat16 on CUDA when omitted")
    parser.add_argument("--masked", type=float, default=0.5, help="share of positions without a target")
    for name, size in CPU_SIZES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{size} on CPU, {CUDA_SIZES[name]} on CUDA")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    return options


def main() -> int:
    """Measure, print one table and the goals."""
    options = parse()
    if options.memory_of:
        at = problem(sizes_of(options), options.masked, getattr(torch, options.dtype), options.device)
        print(extra_bytes(options.memory_of, at, options.device))
        return 0
    found = rows(options)
    goals = cuda_goals(found, options) if options.device == "cuda" else cpu_goals(found)
    if options.json:
        options.json.write_text(
            json.dumps({"title": "Sparse losses", "rows": found, "goals": goals}, indent=1)
        )
    for row in found:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    for goal in goals:
        print(f"{goal['name']}: {goal['value']} (goal {goal['goal']})")
    missed = [goal["name"] for goal in goals if not goal["ok"]]
    print("missed: " + "; ".join(missed) if missed else "all goals met")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

"""Reads the recorded values of the compatibility losses, and compares a loss with them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from atroposlib.losses.compatible.interfaces import LossFunction
from atroposlib.losses.compatible.prepare import prepare_loss_input

COPY = Path(__file__).parent.parent / "data" / "loss_values"
FOLDER = Path(os.environ.get("LOSS_VALUES_DIR") or COPY)

Tree = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One entry of a folder's ``index.json``; ``entry`` is the whole of it."""

    entry: Tree
    folder: Path = FOLDER

    def __str__(self) -> str:
        return str(self.entry["case"])

    @property
    def subject(self) -> str:
        """The class, ``function:<name>`` or ``trl:<trainer>`` that was recorded."""
        return str(self.entry["class"])

    @property
    def flags(self) -> list[str]:
        """What the README's table of faults says of it, e.g. ``nan:loss``."""
        return list(self.entry["flags"])

    @property
    def not_finite(self) -> frozenset[str]:
        """What is NaN or infinite in the recorded library and finite here: ``loss``, names of metrics, ..."""
        marked = [flag for flag in self.flags if flag.startswith(("nan:", "inf:"))]
        return frozenset(flag[4:].removeprefix("metric/") for flag in marked)


@dataclass
class Loaded:
    """A case's arrays, as tensors of one float dtype.

    Attributes:
        config: Constructor arguments, with arrays in place of ``@names``; None where there are none.
        call: Arguments of the call, likewise.
        inputs: Every input by name; those that gradients are recorded for require one. A projection is a
            mapping of its arrays.
        loss, metrics, grads, intermediates, outputs: What was recorded, in float64; ``outputs`` are a
            function's own.
        rtol, atol: The tolerance at this dtype.
    """

    config: Any
    call: Tree
    inputs: Tree
    loss: Tensor | None = None
    metrics: dict[str, Tensor] = field(default_factory=dict)
    grads: dict[str, Tensor] = field(default_factory=dict)
    intermediates: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    rtol: float = 0.0
    atol: float = 0.0

    def check(self, got: Tensor | float, expected: Tensor | float, what: str) -> None:
        """Fail unless ``got`` equals ``expected`` within the tolerance; NaN equals NaN."""
        torch.testing.assert_close(
            torch.as_tensor(got).detach().to(torch.float64),
            torch.as_tensor(expected).to(torch.float64),
            rtol=self.rtol,
            atol=self.atol,
            equal_nan=True,
            check_device=False,
            msg=lambda report: f"{what}: {report}",
        )

    def check_gradients(self, loss: Tensor) -> None:
        """Fail unless the gradient of ``loss`` (of its sum) is the recorded one for every recorded input."""
        names = list(self.grads)
        found = torch.autograd.grad(loss.sum(), [self.inputs[name] for name in names], allow_unused=True)
        for name, gradient in zip(names, found, strict=True):
            self.check(
                self.grads[name] * 0 if gradient is None else gradient, self.grads[name], f"grad/{name}"
            )

    def check_metrics(self, metrics: dict[str, Any], *, except_for: frozenset[str] = frozenset()) -> None:
        """Fail unless every recorded metric is there with its value; ``except_for`` are only looked for."""
        missing = self.metrics.keys() - metrics.keys()
        assert not missing, f"metrics that are missing: {sorted(missing)}"
        for name in self.metrics.keys() - except_for:
            self.check(metrics[name], self.metrics[name], f"metric/{name}")


@cache
def index(folder: Path = FOLDER) -> Tree:
    """A folder's ``index.json``."""
    read: Tree = json.loads((folder / "index.json").read_text())
    return read


def cases(*subjects: str) -> list[Case]:
    """The cases of some classes (``function:x``, ``trl:x`` for the others), in the file's order."""
    return [Case(entry) for entry in index()["cases"] if entry["class"] in subjects]


def copied(name: str) -> Case:
    """A case of the copy by name: for a test of what that one case shows, whatever folder is run."""
    return next(Case(entry, COPY) for entry in index(COPY)["cases"] if entry["case"] == name)


def refusals(*subjects: str) -> list[Tree]:
    """The entries of the list of refusals for some classes."""
    return [entry for entry in index()["refusals"] if entry["class"] in subjects]


def load(case: Case, dtype: torch.dtype = torch.float64) -> Loaded:
    """A case with its arrays; global counts become 0-dimensional tensors."""
    entry = case.entry
    arrays = _group(case.folder / entry["file"])
    inputs = _nested(_under(arrays, f"{case}/input/"))
    inputs = _tensors(inputs, dtype)
    for name in entry["gradients_with_respect_to"]:
        inputs[name].requires_grad_()
    loaded = Loaded(
        config=_resolved(entry["config"], inputs), call=_resolved(entry["call"], inputs), inputs=inputs
    )
    for name in ("global_valid_seqs", "global_valid_toks"):
        if loaded.call.get(name) is not None:
            loaded.call[name] = torch.tensor(loaded.call[name], dtype=dtype)
    tolerance = entry["tolerance"][str(dtype).removeprefix("torch.")]
    loaded.rtol, loaded.atol = tolerance["rtol"], tolerance["atol"]
    for name, value in _under(arrays, f"{case}/expected/").items():
        kind, _, rest = name.partition("/")
        if name == "loss":
            loaded.loss = value
        elif kind == "metric":
            loaded.metrics[rest] = value
        elif kind == "grad":
            loaded.grads[rest] = value
        elif kind == "intermediate":
            loaded.intermediates[rest] = value
        else:
            loaded.outputs[name] = value
    return loaded


def outcome(case: Case, loaded: Loaded, loss_fn: LossFunction) -> tuple[Tensor, Tree, Tree]:
    """Loss, metrics (none for a class that gives none) and prepared inputs (for a case given as logits)."""
    arguments, prepared = dict(loaded.call), {}
    if case.entry["entry_point"] == "from_logits":
        logits, d2t = arguments.pop("logits"), arguments.pop("d2t", None)
        prepared = prepare_loss_input(logits, arguments["data"], loss_fn, d2t=d2t)
    result = loss_fn(**arguments, **prepared)
    loss, metrics = result if isinstance(result, tuple) else (result, {})
    return loss, metrics, prepared


def check_outcome(case: Case, loaded: Loaded, loss_fn: LossFunction) -> None:
    """Fail unless loss, gradients, metrics and prepared inputs are the recorded ones.

    What the recorded library gives as NaN or infinite must be finite instead.
    """
    loss, metrics, prepared = outcome(case, loaded, loss_fn)
    for name in case.not_finite & metrics.keys():
        assert torch.isfinite(torch.as_tensor(metrics[name])).all(), f"{name} is {metrics[name]}"
    loaded.check_metrics(metrics, except_for=case.not_finite)
    for name in loaded.intermediates.keys() & prepared.keys():
        loaded.check(prepared[name], loaded.intermediates[name], f"intermediate/{name}")
    if "loss" in case.not_finite:
        assert torch.isfinite(loss).all(), f"the loss is {loss}"
        return
    assert loaded.loss is not None
    loaded.check(loss, loaded.loss, "loss")
    loaded.check_gradients(loss)


@cache
def _group(file: Path) -> dict[str, Tensor]:
    return load_file(file)


def _under(arrays: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _nested(flat: dict[str, Tensor]) -> Tree:
    tree: Tree = {}
    for name, value in flat.items():
        whole, _, part = name.partition("/")
        if part:
            tree.setdefault(whole, {})[part] = value
        else:
            tree[whole] = value
    return tree


def _tensors(tree: Tree, dtype: torch.dtype) -> Tree:
    return {
        name: _tensors(value, dtype)
        if isinstance(value, dict)
        else (value.to(dtype) if value.is_floating_point() else value).clone()
        for name, value in tree.items()
    }


def _resolved(value: Any, inputs: Tree) -> Any:
    if isinstance(value, dict):
        return {name: _resolved(item, inputs) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, inputs) for item in value]
    if isinstance(value, str) and value.startswith("@"):
        return inputs[value[1:]]
    return value

"""Makes the demo's student: a copy of the teacher without some of its layers."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.errors import UsageError

LAYER = re.compile(r"^(.*\blayers\.)(\d+)(\..*)$")
WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}


@dataclass(frozen=True, slots=True)
class PrunedStudent:
    """What was made: its directory, the teacher's layers it has, and how many the teacher has."""

    directory: Path
    kept_layers: tuple[int, ...]
    teacher_layers: int


def layers_to_keep(layers: int) -> tuple[int, ...]:
    """Two thirds of the layers: every third one goes, never the first nor, of 30, the last."""
    return tuple(layer for layer in range(layers) if layer % 3 != 1)


def prune(teacher: Path, directory: Path, keep: list[int] | None = None) -> PrunedStudent:
    """Copy a model directory without some layers; every kept weight stays as it is, in its dtype.

    Args:
        teacher: Model directory with config.json and safetensors weights.
        directory: Where the student is written; made when missing.
        keep: The teacher's layers to keep, in order; None for :func:`layers_to_keep`.

    Raises:
        UsageError: The teacher's files are not of this kind, or ``keep`` names layers it lacks.
    """
    config = _read_config(teacher)
    layers = int(config["num_hidden_layers"])
    kept = _checked(layers_to_keep(layers) if keep is None else tuple(keep), layers)
    directory.mkdir(parents=True, exist_ok=True)
    for file in teacher.iterdir():
        if file.is_file() and file.suffix not in WEIGHT_SUFFIXES and not file.name.endswith(".index.json"):
            shutil.copyfile(file, directory / file.name)
    config["num_hidden_layers"] = len(kept)
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = [config["layer_types"][layer] for layer in kept]
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    _copy_weights(teacher, directory / "model.safetensors", kept)
    return PrunedStudent(directory, kept, layers)


def _read_config(teacher: Path) -> dict[str, Any]:
    file = teacher / "config.json"
    if not file.is_file():
        raise UsageError(
            "this is no model directory", code="usage.model", where=str(teacher), expected="config.json"
        )
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config.get("num_hidden_layers"), int):
        raise UsageError(
            "the model cannot be pruned",
            code="usage.model",
            where=str(file),
            expected="num_hidden_layers",
            fix="pass --student DIRECTORY",
        )
    return config


def _checked(keep: tuple[int, ...], layers: int) -> tuple[int, ...]:
    if list(keep) != sorted(set(keep)) or not keep or not 0 <= keep[0] <= keep[-1] < layers:
        raise UsageError(
            "keep_layers must name layers of the teacher in rising order",
            where="keep_layers",
            got=list(keep),
            expected=f"some of 0 to {layers - 1}",
        )
    if len(keep) == layers:
        raise UsageError(
            "the student would be the teacher itself: no layer is pruned",
            where="keep_layers",
            fix="pass --student DIRECTORY, or fewer layers",
        )
    return keep


def _copy_weights(teacher: Path, target: Path, keep: tuple[int, ...]) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    files = sorted(teacher.glob("*.safetensors"))
    if not files:
        raise UsageError(
            "only a model with safetensors weights can be pruned",
            code="usage.model",
            where=str(teacher),
            fix="pass --student DIRECTORY",
        )
    place = {layer: index for index, layer in enumerate(keep)}
    weights = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it has no __iter__)
                match = LAYER.match(name)
                if match is None:
                    weights[name] = tensors.get_tensor(name)
                elif int(match[2]) in place:
                    weights[f"{match[1]}{place[int(match[2])]}{match[3]}"] = tensors.get_tensor(name)
    save_file(weights, target, metadata={"format": "pt"})

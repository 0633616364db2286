"""Reads NeMo RL's projection files, which torch wrote: two tensors, or weights by pairs of ids."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atroposlib.projection.files import Projection, ProjectionFacts, checked, of_rows, unreadable
from atroposlib.projection.rows import Cells


def load_pt(file: Path) -> Projection:
    """Read a ``.pt`` file without running any code that is in it.

    Raises:
        ConfigError: It holds something else than numbers and texts, or no projection (``usage.file``).
    """
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise unreadable(file, " ".join(str(error).split())[:200]) from error
    if not isinstance(content, Mapping):
        raise unreadable(file, type(content).__name__, "a mapping")
    if "indices" in content and "likelihoods" in content:
        return _dense(content, file)
    return _sparse(content, file)


def _dense(content: Mapping[Any, Any], file: Path) -> Projection:
    import torch

    tensors = content["indices"], content["likelihoods"]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise unreadable(file, [type(tensor).__name__ for tensor in tensors], "two tensors")
    facts = ProjectionFacts(
        student=_name(content, "student_model_id", "model_A_id"),
        teacher=_name(content, "teacher_model_id", "model_B_id"),
        settings={"scale_trick": bool(content.get("enable_scale_trick", False))},
    )
    # numpy has no bfloat16, and takes no parameters.
    return of_rows(tensors[0].detach().numpy(), tensors[1].detach().float().numpy(), facts, file)


def _name(content: Mapping[Any, Any], *keys: str) -> str:
    """What stands under the first of these keys; older files have other ones."""
    return str(next((content[key] for key in keys if key in content), ""))


def _sparse(content: Mapping[Any, Any], file: Path) -> Projection:
    pairs = [key for key in content if isinstance(key, tuple) and len(key) == 2]
    if not pairs or len(pairs) != len(content):
        keys = sorted({str(key) for key in content if not isinstance(key, tuple)})[:8]
        raise unreadable(file, f"keys {keys}", "indices and likelihoods, or pairs of ids")
    try:
        ids = np.array(pairs, dtype=np.int64)
        weights = np.array([float(weight) for weight in content.values()])
    except (TypeError, ValueError, OverflowError) as error:
        raise unreadable(file, f"{error}", "pairs of ids with weights") from error
    cells = checked(Cells(ids[:, 0], ids[:, 1], weights), file)
    return Projection(cells, int(ids[:, 0].max()) + 1, ProjectionFacts())

"""Projection files from recorded arrays."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor


def written(arrays: dict[str, Tensor], stem: Path) -> str:
    """Write ``indices`` and ``likelihoods``, or ``pairs`` and ``values``, as a projection; the path."""
    if "indices" in arrays:
        path = stem.with_suffix(".safetensors")
        save_file({"indices": arrays["indices"], "likelihoods": arrays["likelihoods"].float()}, path)
    else:
        path = stem.with_suffix(".pt")
        pairs = [(int(student), int(teacher)) for student, teacher in arrays["pairs"].tolist()]
        torch.save(dict(zip(pairs, arrays["values"].tolist(), strict=True)), path)
    return str(path)

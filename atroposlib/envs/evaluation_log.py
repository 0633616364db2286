"""Evaluation results: a log line, metrics.json as lighteval lays it out, and samples.jsonl."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


async def log_evaluation(
    metrics: Mapping[str, Any],
    *,
    task_name: str,
    model_name: str | None,
    seconds: float,
    generation_parameters: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]] | None,
    directory: str | None,
    verbose: bool,
) -> None:
    """Tell the metrics in one line (when ``verbose``) and write them to ``directory`` (when there is one)."""
    if verbose:
        told = ", ".join(f"{name} {value}" for name, value in metrics.items())
        logger.info("%s after %.1f s: %s", task_name, seconds, told)
    if directory is None:
        return
    result = {
        "config_general": {
            "model_name": model_name,
            "total_evaluation_time_seconds": str(seconds),
            "generation_parameters": dict(generation_parameters),
        },
        "results": {f"atropos|{task_name}|0": dict(metrics), "all": dict(metrics)},
    }
    await asyncio.to_thread(_write, Path(directory), result, samples or [])


def _write(directory: Path, result: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "metrics.json").write_text(json.dumps(result, indent=2), encoding="utf-8")
    if samples:
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        (directory / "samples.jsonl").write_text(lines, encoding="utf-8")

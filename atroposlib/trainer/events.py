"""What a step leaves behind: its journal event and its line on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.collate.sequences import CollateCounts, TrainSequence
from atroposlib.trainer.step import StepResult
from atroposlib.types import Group


def batch_fields(
    groups: Sequence[Group],
    sequences: Sequence[TrainSequence],
    counts: CollateCounts,
    result: StepResult,
) -> dict[str, Any]:
    """Members of a ``step`` event that speak of the batch.

    Args:
        groups: Groups of which at least one sequence was trained.
        sequences: The sequences that were trained.
        counts: What the whole batch held.
        result: What the step did.
    """
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "captured_mass": result.captured_mass,
        "tokens": sum(map(len, sequences)),
        "trained_tokens": counts.trained_tokens,
        "target_tokens": counts.target_tokens,
        "untrained_rows": {reason: rows for reason, rows in counts.untrained_rows.items() if rows},
        "out_of_vocabulary": counts.columns.out_of_vocabulary,
        "duplicate_columns": counts.columns.duplicate,
        **({"tied_groups": counts.tied_groups} if counts.tied_groups else {}),
        "terms": result.terms,
        "sequences": len(sequences),
        "groups": len(groups),
        "group_ids": [group.rest.get("group_id") for group in groups],
        "policy_versions": [group.rest.get("policy_version") for group in groups],
    }


def step_line(event: dict[str, Any], total_steps: int, seconds: float) -> str:
    """One line for people; ``seconds`` is the time of the step without the wait for its batch."""
    return (
        f"step {event['step']}/{total_steps}  loss {event['loss']:.4f} nats/token"
        f"  {event['tokens']} tokens ({event['target_tokens']} with a target)"
        f"  {event['tokens'] / max(seconds, 1e-9):.0f} tokens/s  lr {event['learning_rate']:.2e}"
        f"  gradient {event['grad_norm']:.2f}  waited {event['wait_s']:.1f} s"
    )

"""The table of all runs and the goals, from the lines of the results."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from study.measure import difference

Line = dict[str, Any]
Key = tuple[str, str, float, int]
"""Text trained on, loss, rate, steps; runs of one key differ by their seed."""

BASE, DEFAULT = "ce", "quotient+path"
LEAST_SEEDS = 2
BEATS_SFT = 0.05
OWN_FALL = 0.10
FIGURES = ("bits_per_byte", "chunk_gap", "quotient_kl", "outside")


def rows(lines: Sequence[Line]) -> list[Line]:
    """A row for each loss and rate; figures of all its seeds, and bits per byte beside the best SFT's."""
    grouped = _grouped(lines)
    found = []
    for key, runs in grouped.items():
        part, loss, rate, steps = key
        row: Line = {"text": part, "loss": loss, "rate": f"{rate:g}", "steps": steps}
        row["seeds"] = " / ".join(str(run["seed"]) for run in runs)
        row["val bits/byte"] = _each(runs, "bits_per_byte", "val")
        row |= {name.replace("_", " "): _each(runs, name) for name in FIGURES}
        row["bits/byte minus SFT [95 %]"] = _beside(runs, best_sft(grouped, part, steps))
        row["first gradient's norm"] = _mean(run.get("course", {}).get("first_norm") for run in runs)
        row["s/step"] = _mean(run.get("course", {}).get("seconds_a_step") for run in runs)
        found.append(row)
    return found


def goals(lines: Sequence[Line]) -> list[Line]:
    """What the default loss must reach on both kinds of text."""
    grouped = _grouped(lines)
    start = next((line["test"] for line in lines if line["part"] == "before"), None)
    found = []
    ours = _best(grouped, "teacher", DEFAULT, 24)
    sft = best_sft(grouped, "teacher", 24)
    rates = {key[2] for key in grouped if key[:2] == ("teacher", BASE) and key[3] == 24}
    pairs = _same_seeds(ours, sft) if len(rates) >= 3 else []
    gains = [1 - one["test"]["quotient_kl"] / other["test"]["quotient_kl"] for one, other in pairs]
    found.append(_goal("held-out quotient KL below that of SFT at its best of three rates", gains, BEATS_SFT))
    lost = [one["test"]["bits_per_byte"] - other["test"]["bits_per_byte"] for one, other in pairs]
    found.append(_goal("bits per byte below that SFT's", [-value for value in lost], 0.0))
    own = _best(grouped, "own", DEFAULT, 12)
    falls = [1 - run["test"]["quotient_kl"] / start["quotient_kl"] for run in own] if start else []
    found.append(_goal("fall of the quotient KL in 12 steps on own samples", falls, OWN_FALL))
    return found


def _goal(name: str, values: list[float], least: float) -> Line:
    """Every seed has to reach it."""
    return {
        "name": name,
        "value": " / ".join(f"{value:.4f}" for value in values) or "not measured",
        "goal": f">= {least:g} in each of {LEAST_SEEDS} seeds or more",
        "ok": len(values) >= LEAST_SEEDS and min(values) >= least,
    }


def best_sft(grouped: dict[Key, list[Line]], part: str, steps: int) -> list[Line]:
    """SFT's runs at the rate with the best bits per byte on the validation texts."""
    return _best(grouped, part, BASE, steps)


def _best(grouped: dict[Key, list[Line]], part: str, loss: str, steps: int) -> list[Line]:
    sweep = [runs for key, runs in grouped.items() if key[:2] == (part, loss) and key[3] == steps]
    return min(
        sweep, key=lambda runs: statistics.mean(run["val"]["bits_per_byte"] for run in runs), default=[]
    )


def _same_seeds(ones: list[Line], others: list[Line]) -> list[tuple[Line, Line]]:
    of_seed = {run["seed"]: run for run in others}
    return [(run, of_seed[run["seed"]]) for run in ones if run["seed"] in of_seed]


def _grouped(lines: Sequence[Line]) -> dict[Key, list[Line]]:
    grouped: dict[Key, list[Line]] = {}
    for line in lines:
        key = (line["part"], line["loss"], line["rate"], line["steps"])
        grouped.setdefault(key, []).append(line)
    return grouped


def _beside(runs: list[Line], base: list[Line]) -> str:
    """The difference of the first seed that both have."""
    pairs = _same_seeds(runs, base)
    if not pairs or pairs[0][0] is pairs[0][1]:
        return ""
    one, other = (np.array(run["each"]["nats"]) for run in pairs[0])
    size = np.array(pairs[0][0]["each"]["total_bytes"]) * np.log(2)
    value, low, high = difference(one, other, size)
    return f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"


def _each(runs: list[Line], name: str, part: str = "test") -> str:
    return " / ".join(f"{run[part][name]:.4f}" for run in runs)


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.2f}" if known else ""

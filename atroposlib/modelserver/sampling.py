"""Choose the next token of every sequence of a batch, each with its own options and random generator."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch

from atroposlib.modelserver.work import SamplingOptions, Sequence

MIN_TEMPERATURE = 0.01
"""vLLM raises a temperature between zero and this, where the softmax would overflow."""

SORTED_HEAD = 512
"""How many ids are looked at for top_p before the whole vocabulary is sorted."""


def new_generator(seed: int) -> torch.Generator:
    """A generator on the CPU, so that a seed means the same tokens on every device."""
    return torch.Generator().manual_seed(seed)


def choose(logits: torch.Tensor, sequences: Many[Sequence], eos_ids: frozenset[int]) -> torch.Tensor:
    """The next token id of each sequence, int64 [B].

    A sampled row draws one number of its generator and inverts the cumulative distribution with it, so what
    it gets does not depend on the other rows.

    Args:
        logits: float [B, V]; not changed.
        sequences: The B sequences.
        eos_ids: Ids that end a sequence, and are forbidden until it has ``min_tokens``.
    """
    logits = _forbid_early_ends(logits, sequences, eos_ids)
    chosen = logits.argmax(-1)
    sampled = [row for row, sequence in enumerate(sequences) if not sequence.job.options.greedy]
    if not sampled:
        return chosen
    options = [sequences[row].job.options for row in sampled]
    draws = [torch.rand((), generator=sequences[row].generator, dtype=torch.float64) for row in sampled]
    rows = torch.tensor(sampled, device=logits.device)
    chosen[rows] = _invert(_probabilities(logits[rows], options), torch.stack(draws).to(logits.device))
    return chosen


def _forbid_early_ends(
    logits: torch.Tensor, sequences: Many[Sequence], eos_ids: frozenset[int]
) -> torch.Tensor:
    early = [
        row for row, sequence in enumerate(sequences) if len(sequence.ids) < sequence.job.options.min_tokens
    ]
    if not early:
        return logits
    logits = logits.clone()
    for row in early:
        ends = eos_ids | sequences[row].job.options.stop_token_ids
        logits[row, torch.tensor(sorted(ends), dtype=torch.long, device=logits.device)] = -torch.inf
    return logits


def _probabilities(logits: torch.Tensor, options: Many[SamplingOptions]) -> torch.Tensor:
    """float64 [B, V] after temperature, min_p, top_k and top_p."""
    temperature = [max(option.temperature, MIN_TEMPERATURE) for option in options]
    scaled = logits.double() / torch.tensor(temperature, dtype=torch.float64, device=logits.device)[:, None]
    probabilities = scaled.softmax(-1)
    for row, option in enumerate(options):
        if option.min_p > 0 or option.top_k > 0 or option.top_p < 1:
            probabilities[row] *= _allowed(probabilities[row], option)
    return probabilities


def _allowed(probabilities: torch.Tensor, option: SamplingOptions) -> torch.Tensor:
    """bool [V]: the ids that min_p, top_k and top_p leave; the most likely one always stays."""
    allowed = probabilities >= option.min_p * probabilities.max()
    if option.top_k <= 0 and option.top_p >= 1:
        return allowed
    ordered, order, total = _most_likely(torch.where(allowed, probabilities, 0), option)
    before = ordered.cumsum(0) - ordered
    kept = (ordered > 0) & (before < option.top_p * total)
    return torch.zeros_like(allowed).scatter(0, order, kept)


def _most_likely(
    probabilities: torch.Tensor, option: SamplingOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The ids that top_k and top_p can leave, in falling order.

    Returns their probabilities, the ids, and what top_p is a share of: the sum of all, or of top_k's.
    """
    if option.top_k > 0:
        ordered, order = probabilities.topk(min(option.top_k, len(probabilities)))
        return ordered, order, ordered.sum()
    total = probabilities.sum()
    # Sorting a whole vocabulary takes ten times as long as finding its head, which nearly always holds top_p.
    ordered, order = probabilities.topk(min(SORTED_HEAD, len(probabilities)))
    if ordered.sum() < option.top_p * total:
        ordered, order = probabilities.sort(descending=True)
    return ordered, order, total


def _invert(probabilities: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The id of each row whose share of the cumulative distribution holds the row's draw in [0, 1)."""
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1]
    # Rounding can lift the product to the total itself, beyond the last id that has any probability.
    targets = torch.minimum(draws * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0].clamp(
        max=probabilities.shape[-1] - 1
    )

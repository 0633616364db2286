"""Scores as JSON members, in vLLM's three shapes: prompt_logprobs, completion logprobs and chat logprobs.

JSON has no -inf, so a logprob of -inf is told as -9999.0.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from atroposlib.modelserver.text import TextCodec
from atroposlib.modelserver.work import Job, Sequence, TokenScores
from atroposlib.types import ABSENT_LOGPROB

Entry = dict[int, dict[str, Any]]
"""One position: token id to logprob, rank and decoded token; the position's own token comes first."""


@dataclass(frozen=True, slots=True)
class TokenNames:
    """How tokens are written: as their text, or as ``token_id:N``."""

    codec: TextCodec
    as_ids: bool = False

    def name(self, token_id: int, member: dict[str, Any] | None) -> str:
        """The name of ``token_id``, whose ``member`` of an entry is None at a sequence's first position."""
        if self.as_ids:
            return f"token_id:{token_id}"
        text: str = self.codec.token_text(token_id, []) if member is None else member["decoded_token"]
        return text


def position_entry(scores: TokenScores, before: list[int], codec: TextCodec) -> Entry:
    """The entry of one position; a selected token that is in the top-k stands once, with its place there."""
    entry: Entry = {}
    ranks = [scores.rank, *range(1, len(scores.ids))]
    for token_id, logprob, rank in zip(scores.ids, scores.logprobs, ranks, strict=True):
        entry[token_id] = {
            "logprob": max(logprob, ABSENT_LOGPROB),
            "rank": rank,
            "decoded_token": codec.token_text(token_id, before),
        }
    return entry


def prompt_entries(job: Job, codec: TextCodec) -> list[Entry | None] | None:
    """One entry a prompt token, the first null; None when they were not asked for."""
    if job.options.prompt_logprobs is None:
        return None
    entries: list[Entry | None] = [None]
    if job.prompt_scores is not None:
        scores = job.prompt_scores
        rows = zip(scores.ids.tolist(), scores.logprobs.tolist(), scores.ranks.tolist(), strict=True)
        for position, row in enumerate(rows, start=1):
            entries.append(position_entry(TokenScores(*row), job.prompt_ids[:position][-4:], codec))
    return entries


def sampled_entries(sequence: Sequence, codec: TextCodec) -> list[Entry]:
    """One entry a sampled token."""
    context = sequence.job.prompt_ids[-4:] + sequence.ids
    start = len(context) - len(sequence.ids)
    return [
        position_entry(scores, context[max(0, start + index - 4) : start + index], codec)
        for index, scores in enumerate(sequence.scores)
    ]


def keyed_by_text(entries: list[Entry | None] | None) -> list[dict[str, Any] | None] | None:
    """Entries with string keys, as JSON wants them."""
    if entries is None:
        return None
    return [
        None if entry is None else {str(token_id): member for token_id, member in entry.items()}
        for entry in entries
    ]


def completion_logprobs(
    ids: list[int], entries: Many[Entry | None], k: int, names: TokenNames
) -> dict[str, list[Any]]:
    """The ``logprobs`` of a completion choice: names, offsets and top-k by name.

    Two ids with the same text share a key, as in vLLM; ask for ``token_id:N`` names to keep them apart.
    """
    reply: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for token_id, entry in zip(ids, entries, strict=True):
        member = None if entry is None else entry[token_id]
        tops = list((entry or {}).items())[: k + 1]
        reply["tokens"].append(names.name(token_id, member))
        reply["token_logprobs"].append(member and member["logprob"])
        reply["top_logprobs"].append(
            entry and {names.name(other, top): top["logprob"] for other, top in tops}
        )
    lengths = [len(name) for name in reply["tokens"]]
    reply["text_offset"] = list(accumulate(lengths[:-1], initial=0)) if lengths else []
    return reply


def chat_logprobs(sequence: Sequence, k: int, names: TokenNames) -> dict[str, list[Any]]:
    """The ``logprobs`` of a chat choice: every token with the first ``k`` members of its position."""
    content = []
    for token_id, entry in zip(sequence.ids, sampled_entries(sequence, names.codec), strict=True):
        own = {**_chat_member(token_id, entry, names), "bytes": _bytes(entry[token_id]["decoded_token"])}
        content.append({**own, "top_logprobs": [_chat_member(top, entry, names) for top in list(entry)[:k]]})
    return {"content": content}


def _chat_member(token_id: int, entry: Entry, names: TokenNames) -> dict[str, Any]:
    name = names.name(token_id, entry[token_id])
    return {"token": name, "logprob": entry[token_id]["logprob"], "bytes": _bytes(name)}


def _bytes(text: str) -> list[int]:
    return list(text.encode())

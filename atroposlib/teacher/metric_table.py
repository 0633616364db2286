"""Every figure of a teacher, in one table. Imports nothing, so that it can be listed at once."""

from __future__ import annotations

PREFIX = "teacher/NAME/"
"""Stands before each name; NAME is the teacher's."""

TEACHER_METRICS: dict[str, str] = {
    "asked": "Sequences that were to be scored: scored + failed + cancelled + those in work.",
    "asked_tokens": "Their tokens.",
    "scored": "Sequences that a server or the cache answered.",
    "scored_tokens": "Their tokens.",
    "failed": "Sequences that were not answered.",
    "failed/CODE": "The same by error code.",
    "cancelled": "Sequences that nobody waited for any more.",
    "retries": "Tries after the first one of a sequence.",
    "cache_hits": "Sequences answered from the cache.",
    "joined": "Sequences that waited for the answer to an equal one in flight.",
    "canaries": "Times that a server was asked for the canary.",
    "aside/CODE": "Times that a server was set aside, by error code.",
    "received_bytes": "Bytes of all answers as they travelled.",
    "tokens_per_second": "Tokens scored a second, since the figures were last taken.",
    "seconds_mean": "Mean seconds from question to answer of a server, over the last rolling_buffer_length.",
    "seconds_max": "Longest of these.",
}

COVERAGE_METRIC = (
    "teacher_token_frac/NAME",
    "Positions with a target of the positions that should have one, since the last log.",
)

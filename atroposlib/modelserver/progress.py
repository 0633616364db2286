"""Append a token to a sequence and tell whether it ends there, as vLLM does."""

from __future__ import annotations

from atroposlib.modelserver.work import EndTokens, Sequence, TokenScores


def advance(
    sequence: Sequence, token_id: int, scores: TokenScores, ends: EndTokens, max_model_len: int
) -> None:
    """Append ``token_id``; sets text, finish_reason and stop_reason when it ends the sequence.

    An end token stays in ``ids`` and ``scores`` and leaves no text, unless a stop is to be included. The
    reason of a stop string is the string, of the tokenizer's end token null, of any other end token its id.
    """
    options = sequence.job.options
    sequence.ids.append(token_id)
    sequence.scores.append(scores)
    if token_id in options.stop_token_ids or (token_id in ends.all and not options.ignore_eos):
        sequence.finish_reason = "stop"
        sequence.stop_reason = None if token_id == ends.own else token_id
        if options.include_stop_str_in_output:
            sequence.text += sequence.stream.push(token_id)
        return
    new = sequence.stream.push(token_id)
    sequence.text += new
    full = len(sequence.ids) >= options.max_tokens
    if full or len(sequence.job.prompt_ids) + len(sequence.ids) >= max_model_len:
        sequence.finish_reason = "length"
    if len(sequence.ids) > options.min_tokens:
        _end_at_stop_string(sequence, len(new))


def _end_at_stop_string(sequence: Sequence, new: int) -> None:
    """End the sequence at the first of its stop strings that the last ``new`` characters complete."""
    options = sequence.job.options
    for stop in options.stop:
        start = sequence.text.find(stop, max(0, len(sequence.text) - new - len(stop) + 1))
        if start >= 0 and new:
            sequence.finish_reason = "stop"
            sequence.stop_reason = stop
            end = start + len(stop) if options.include_stop_str_in_output else start
            sequence.text = sequence.text[:end]
            return

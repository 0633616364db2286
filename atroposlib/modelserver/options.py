"""Turn the sampling fields of a request into checked options, refusing what vLLM refuses."""

from __future__ import annotations

import math

from atroposlib.modelserver.refusals import Refusal
from atroposlib.modelserver.schemas import SamplingRequest
from atroposlib.modelserver.served import ServedModel
from atroposlib.modelserver.work import SamplingOptions

MAX_N = 16384


def check_max_tokens(model: ServedModel, name: str, value: int | None) -> None:
    """Refuse more output than the context holds, before the prompt is looked at."""
    if value is not None and value > model.max_model_len:
        raise Refusal(
            f"{name}={value} cannot be greater than max_model_len={model.max_model_len}. "
            "Please request fewer output tokens.",
            name,
            value,
        )


def sampling_options(
    request: SamplingRequest,
    model: ServedModel,
    *,
    prompt_length: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingOptions:
    """The options of one prompt: the request's values, then the model's own defaults, then neutral ones."""
    room = model.max_model_len - prompt_length

    def value(name: str, neutral: float) -> float:
        given: float | None = getattr(request, name)
        return float(model.defaults.get(name, neutral)) if given is None else given

    options = SamplingOptions(
        max_tokens=room if max_tokens is None else min(max_tokens, room),
        min_tokens=request.min_tokens,
        temperature=value("temperature", 1.0),
        top_p=value("top_p", 1.0),
        top_k=int(value("top_k", 0)),
        min_p=value("min_p", 0.0),
        seed=None if request.seed == -1 else request.seed,
        n=1 if request.n is None else request.n,
        stop=_strings(request.stop),
        stop_token_ids=frozenset(request.stop_token_ids or ()),
        include_stop_str_in_output=request.include_stop_str_in_output,
        ignore_eos=request.ignore_eos,
        skip_special_tokens=request.skip_special_tokens,
        logprobs=_count("sample", "logprobs", logprobs, model),
        prompt_logprobs=_count("prompt", "prompt_logprobs", prompt_logprobs, model),
    )
    _check_numbers(options)
    _check_ends(options, model)
    return options


def _strings(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _count(kind: str, param: str, count: int | None, model: ServedModel) -> int | None:
    """The count of logprobs with -1 resolved; raises Refusal above the server's limit."""
    if count is None:
        return None
    count = model.vocab_size if count == -1 else count
    limit = model.vocab_size if model.max_logprobs == -1 else model.max_logprobs
    if count > limit:
        raise Refusal(
            f"Requested {kind} logprobs of {count}, which is greater than max allowed: {limit}", param, count
        )
    return min(count, model.vocab_size)


def _check_numbers(options: SamplingOptions) -> None:
    _check_n(options)
    _check_temperature(options.temperature)
    if not 0.0 < options.top_p <= 1.0:
        raise Refusal(f"top_p must be in (0, 1], got {options.top_p}.", "top_p", options.top_p)
    if options.top_k < -1:
        raise Refusal(f"top_k must be 0 (disable), or at least 1, got {options.top_k}.")
    if not 0.0 <= options.min_p <= 1.0:
        raise Refusal(f"min_p must be in [0, 1], got {options.min_p}.")
    if options.max_tokens < 1:
        raise Refusal(
            f"max_tokens must be at least 1, got {options.max_tokens}.", "max_tokens", options.max_tokens
        )
    if options.min_tokens < 0:
        raise Refusal(f"min_tokens must be greater than or equal to 0, got {options.min_tokens}.")
    if options.min_tokens > options.max_tokens:
        most = f"max_tokens={options.max_tokens}"
        raise Refusal(f"min_tokens must be less than or equal to {most}, got {options.min_tokens}.")


def _check_n(options: SamplingOptions) -> None:
    if options.n < 1:
        raise Refusal(f"n must be at least 1, got {options.n}.")
    if options.n > MAX_N:
        raise Refusal(f"n must be at most {MAX_N}, got {options.n}.")
    if options.n > 1 and options.greedy:
        raise Refusal(f"n must be 1 when using greedy sampling, got {options.n}.")


def _check_temperature(temperature: float) -> None:
    limits = {
        "must be a finite number": math.isfinite(temperature),
        "must be non-negative": temperature >= 0.0,
        "must be in [0, 2]": temperature <= 2.0,
    }
    for limit, holds in limits.items():
        if not holds:
            raise Refusal(f"temperature {limit}, got {temperature}.", "temperature", temperature)


def _check_ends(options: SamplingOptions, model: ServedModel) -> None:
    if any(not stop for stop in options.stop):
        raise Refusal("stop cannot contain an empty string.")
    invalid = sorted(token for token in options.stop_token_ids if not 0 <= token < model.vocab_size)
    if invalid:
        raise Refusal(
            f"token_id(s) {invalid} in stop_token_ids contain out-of-vocab token ids. "
            f"Vocabulary size: {model.vocab_size}",
            "stop_token_ids",
            invalid,
        )

"""Says where two answers to one request differ by more than the rounding of float32 can explain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.vllm_cases import Case

TOLERANCE = 1e-3
"""Nats by which two logprobs of the same token may differ."""

NAMES_THE_SERVER = {"system_fingerprint", "owned_by"}
"""Members that say which server answered."""

RANK_SHARE = 0.02
"""Share of its rank by which a token far down may move: there the next one is less than rounding away."""

Row = dict[str, dict[str, Any]]


def is_drawn(case: Case) -> bool:
    """Whether the answer holds sampled tokens, so that only its shape is fixed."""
    return isinstance(case.json, dict) and bool(case.json.get("temperature"))


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What differs in value: logprobs beyond the tolerance, ids where there is no tie, all else exactly."""
    if type(ours) is not type(theirs):
        yield f"{path}: {ours!r} is not of the type of {theirs!r}"
    elif _is_row(theirs):
        yield from (f"{path}: {text}" for text in row_differences(ours, theirs))
    elif isinstance(theirs, dict):
        if list(ours) != list(theirs):
            yield f"{path}: keys {list(ours)}, theirs {list(theirs)}"
        for key in theirs.keys() & ours.keys() - NAMES_THE_SERVER:
            yield from differences(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{path}: {len(ours)} members, theirs {len(theirs)}"
        for index, pair in enumerate(zip(ours, theirs, strict=False)):
            yield from differences(*pair, f"{path}[{index}]")
    elif isinstance(theirs, float):
        if abs(ours - theirs) > TOLERANCE:
            yield f"{path}: {ours}, theirs {theirs}"
    elif ours != theirs:
        yield f"{path}: {ours!r}, theirs {theirs!r}"


def shape_differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What differs in keys and types, and in the number of choices; lists of tokens may differ in length."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if _holds_tokens(theirs, path):
            pairs = [(next(iter(ours.values()), None), next(iter(theirs.values())))]
            yield from (text for pair in pairs for text in shape_differences(*pair, f"{path}.*"))
            return
        if list(ours) != list(theirs):
            yield f"{path}: keys {list(ours)}, theirs {list(theirs)}"
        for key in theirs.keys() & ours.keys() - NAMES_THE_SERVER:
            yield from shape_differences(ours[key], theirs[key], f"{path}.{key}")
    elif isinstance(theirs, list) and isinstance(ours, list):
        if path.endswith("choices") and len(ours) != len(theirs):
            yield f"{path}: {len(ours)} members, theirs {len(theirs)}"
        for pair in [*zip(ours[:1], theirs[:1], strict=False), *zip(ours[1:2], theirs[1:2], strict=False)]:
            yield from shape_differences(*pair, f"{path}[]")
    elif type(ours) is not type(theirs) and not path.endswith(("finish_reason", "stop_reason")):
        yield f"{path}: {ours!r} is not of the type of {theirs!r}"


def row_differences(ours: Row, theirs: Row) -> Iterator[str]:
    """What differs between two rows of prompt_logprobs for the same token.

    A token may be in one row alone only when it ties with the last of the other; ranks of a top-k follow the
    logprobs, so they are held to the order of tokens that do not tie.
    """
    for key in ours.keys() & theirs.keys():
        if abs(ours[key]["logprob"] - theirs[key]["logprob"]) > TOLERANCE:
            yield f"logprob of {key}: {ours[key]['logprob']}, theirs {theirs[key]['logprob']}"
        if ours[key]["decoded_token"] != theirs[key]["decoded_token"]:
            yield f"text of {key}: {ours[key]['decoded_token']!r}, theirs {theirs[key]['decoded_token']!r}"
        if abs(ours[key]["rank"] - theirs[key]["rank"]) > _slack(theirs, key):
            yield f"rank of {key}: {ours[key]['rank']}, theirs {theirs[key]['rank']}"
    for one, other in ((ours, theirs), (theirs, ours)):
        for key in one.keys() - other.keys():
            if abs(one[key]["logprob"] - _last(other)) > TOLERANCE:
                yield f"token {key} with logprob {one[key]['logprob']} is in one row alone"


def _slack(row: Row, key: str) -> float:
    """Places by which the rank of a member may differ: the members that tie with it, or far down a share."""
    ties = [other for other in row if abs(row[other]["logprob"] - row[key]["logprob"]) <= 2 * TOLERANCE]
    outside_the_top_k = row[key]["rank"] > len(row) - 1
    return len(ties) - 1 + (1 + RANK_SHARE * row[key]["rank"] if outside_the_top_k else 0)


def _last(row: Row) -> float:
    """Logprob of the last of the top-k."""
    ranked = sorted((member["rank"], member["logprob"]) for member in row.values())
    in_order = [logprob for place, (rank, logprob) in enumerate(ranked, start=1) if rank <= place]
    return float(in_order[-1])


def _is_row(value: Any) -> bool:
    """Whether an object is a row of prompt_logprobs, keyed by token id."""
    members = value.items() if isinstance(value, dict) else ()
    return bool(members) and all(key.isdigit() and isinstance(member, dict) for key, member in members)


def _holds_tokens(value: dict[str, Any], path: str) -> bool:
    """Whether the keys of an object are tokens: ids in prompt_logprobs, texts in top_logprobs."""
    return _is_row(value) or (bool(value) and path.endswith("top_logprobs[]"))

"""Groups for the wire's tests, and what they must look like after a way through a frame, in plain Python."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

from atroposlib.types import ScoredDataGroup

finite = st.floats(allow_nan=False, allow_infinity=False)
float32s = st.floats(allow_nan=False, allow_infinity=False, width=32)
ids = st.integers(0, 2**31 - 1)
free_form = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | finite | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def matrix(draw: st.DrawFn, lengths: list[int], values: st.SearchStrategy[Any]) -> list[list[Any]]:
    return [draw(st.lists(values, min_size=length, max_size=length)) for length in lengths]


@st.composite
def rows(draw: st.DrawFn, columns: int) -> tuple[list[int], list[float]]:
    """One row of distinct ids whose probabilities sum below one; some entries absent, some as good as."""
    width = draw(st.integers(0, columns))
    row_ids = draw(st.lists(ids, min_size=width, max_size=width, unique=True))
    weights = draw(st.lists(st.integers(1, 1000), min_size=width + 1, max_size=width + 1))
    logprobs = [float(np.float32(np.log(weight / sum(weights)))) for weight in weights[:-1]]
    for column in range(width):
        match draw(st.integers(0, 7)):
            case 0:
                row_ids[column], logprobs[column] = -1, -9999.0
            case 1:
                logprobs[column] = -9999.0
    return row_ids, logprobs


@st.composite
def target_lists(draw: st.DrawFn, lengths: list[int]) -> tuple[list[Any], list[Any]]:
    """Ids and logprobs [G][<= T][<= K]."""
    columns = draw(st.integers(0, 3))
    counts = [draw(st.integers(0, length)) for length in lengths]
    drawn = [[draw(rows(columns)) for _ in range(count)] for count in counts]
    return [[row[0] for row in rows] for rows in drawn], [[row[1] for row in rows] for rows in drawn]


@st.composite
def teachers(draw: st.DrawFn, lengths: list[int]) -> dict[str, Any]:
    entry: dict[str, Any] = draw(
        st.fixed_dictionaries({"name": st.text(), "weight": finite, "note": free_form})
    )
    own = lengths
    if draw(st.booleans()):
        own = [draw(st.integers(0, 4)) for _ in lengths]
        chunks = st.integers(-1, 5)
        entry |= {
            "same_tokenizer": False,
            "tokens": matrix(draw, own, ids),
            "student_chunk_id": matrix(draw, lengths, chunks),
            "teacher_chunk_id": matrix(draw, own, chunks),
        }
    if draw(st.booleans()):
        entry["token_ids"], entry["logprobs"] = draw(target_lists(own))
    return entry


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """A group that the API takes, as an environment posts it."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    count = len(lengths)
    group = {
        "tokens": matrix(draw, lengths, ids),
        "masks": matrix(draw, lengths, st.just(-100) | ids),
        "scores": draw(st.lists(finite, min_size=count, max_size=count)),
    }
    messages = st.lists(st.fixed_dictionaries({"role": st.text(), "content": free_form, "reward": free_form}))
    targets = draw(target_lists(lengths))
    optional = {
        "advantages": matrix(draw, lengths if draw(st.booleans()) else [1] * count, float32s),
        "ref_logprobs": matrix(draw, lengths, float32s),
        "inference_logprobs": matrix(draw, lengths, float32s),
        "messages": draw(st.lists(messages, max_size=2)),
        "generation_params": draw(st.dictionaries(st.text(), free_form, max_size=3)),
        "overrides": draw(st.lists(st.dictionaries(st.text(), free_form), min_size=count, max_size=count)),
        "group_overrides": draw(st.dictionaries(st.text(), free_form, max_size=3)),
        "images": draw(free_form),
        "env_id": draw(st.integers(-(2**40), 2**40)),
        "distill_token_ids": targets[0],
        "distill_logprobs": targets[1],
        "group_id": draw(st.text(min_size=1, max_size=128)),
        "policy_version": draw(st.integers(-1, 2**40)),
        "teachers": draw(st.lists(teachers(lengths), min_size=1, max_size=2)),
    }
    chosen = draw(st.sets(st.sampled_from(sorted(optional))))
    if chosen & {"distill_token_ids", "distill_logprobs"}:
        chosen |= {"distill_token_ids", "distill_logprobs"}
    return group | {key: optional[key] for key in chosen}


def rectangular(
    all_ids: list[Any], all_logprobs: list[Any], lengths: list[int], columns: int
) -> tuple[list[Any], list[Any]]:
    """Targets [G][T][columns]; missing rows and columns are absent."""

    def wide(row: list[Any], absent: float) -> list[Any]:
        return (row + [absent] * columns)[:columns]

    def tall(sequence: list[Any], length: int, absent: float) -> list[Any]:
        return [wide(row, absent) for row in sequence + [[]] * (length - len(sequence))]

    pairs = zip(all_ids, all_logprobs, lengths, strict=True)
    tables = [(tall(some, length, -1), tall(others, length, -9999.0)) for some, others, length in pairs]
    return [table[0] for table in tables], [table[1] for table in tables]


def through_frame(group: dict[str, Any]) -> dict[str, Any]:
    """What a group of float32 numbers is after a way through a frame: the rules once more, without numpy."""
    known = {key: value for key, value in group.items() if value is not None}
    lengths = [len(row) for row in known["tokens"]]
    for entry in known.get("teachers", ()):
        if entry.get("tokens") == known["tokens"]:
            del entry["tokens"]
        if "token_ids" in entry:
            own = [len(row) for row in entry["tokens"]] if "tokens" in entry else lengths
            entry["token_ids"], entry["logprobs"] = _targets(entry["token_ids"], entry["logprobs"], own)
    if "distill_token_ids" in known:
        targets = _targets(known["distill_token_ids"], known["distill_logprobs"], lengths)
        known["distill_token_ids"], known["distill_logprobs"] = targets
        return known
    for entry in known.get("teachers", ()):
        if "token_ids" in entry and "tokens" not in entry and entry.get("same_tokenizer", True):
            known["distill_token_ids"], known["distill_logprobs"] = entry["token_ids"], entry["logprobs"]
            break
    return known


def _targets(all_ids: list[Any], all_logprobs: list[Any], lengths: list[int]) -> tuple[list[Any], list[Any]]:
    said = [
        [
            [-1 if value <= -9999.0 else token for token, value in zip(some, others, strict=True)]
            for some, others in rows
        ]
        for rows in (list(zip(*pair, strict=True)) for pair in zip(all_ids, all_logprobs, strict=True))
    ]
    columns = [index + 1 for rows in said for row in rows for index, token in enumerate(row) if token != -1]
    return rectangular(said, all_logprobs, lengths, max(columns, default=0))


def small(**changes: Any) -> dict[str, Any]:
    """Two sequences, of two tokens and of one."""
    return {"tokens": [[1, 2], [3]], "masks": [[-100, 2], [3]], "scores": [0.5, 1]} | changes


def rich() -> ScoredDataGroup:
    """A group with everything: two teachers, one of them with another tokenizer, and every optional array."""
    return json.loads(
        json.dumps(
            small(
                advantages=[[0.5, -0.5], [1.0]],
                ref_logprobs=[[0.0, -1.5], [-2.0]],
                inference_logprobs=[[1.0, -0.25], [-0.75]],
                messages=[[{"role": "user", "content": "2 + 2, please"}]],
                overrides=[{}, {"set_advantage_to_zero": True}],
                env_id=3,
                group_id="a-group",
                policy_version=7,
                distill_token_ids=[[[-1, -1], [2, 9]], [[3, -1]]],
                distill_logprobs=[[[-9999.0, -9999.0], [-0.5, -1.25]], [[-0.125, -9999.0]]],
                teachers=[
                    {
                        "name": "same",
                        "weight": 1.0,
                        "same_tokenizer": True,
                        "token_ids": [[[], [2, 9]], [[3]]],
                        "logprobs": [[[], [-0.5, -1.25]], [[-0.125]]],
                    },
                    {
                        "name": "other",
                        "same_tokenizer": False,
                        "tokens": [[11, 12, 13], [14]],
                        "token_ids": [[[], [12], [13]], [[14]]],
                        "logprobs": [[[], [-0.5], [-0.25]], [[-1.0]]],
                        "student_chunk_id": [[0, 1], [0]],
                        "teacher_chunk_id": [[0, 1, 1], [0]],
                    },
                ],
            )
        )
    )

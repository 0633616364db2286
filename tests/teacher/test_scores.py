"""Parsing of prompt_logprobs: right on everything a server may send, and refusing everything else."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.errors import TeacherError
from atroposlib.teacher import completions
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.scores import to_lists
from atroposlib.types import ABSENT_ID, TeacherScores
from tests.support.recorded import recorded_body
from tests.support.vllm_cases import IDS
from tests.support.vllm_render import fake_logprobs, render, render_row

Case = tuple[np.ndarray, list[int], int]


def parse(rows: Any, ids: list[int], k: int, *, model: str = "", start: int = 1) -> TeacherScores:
    """What the route makes of a reply with these rows; NaN and Infinity stand in it as Python writes them."""
    body = json.dumps({"model": model, "choices": [{"prompt_logprobs": rows}]}).encode()
    return completions.read(body, Question(np.asarray(ids, dtype=np.int32), k, start))


@st.composite
def cases(draw: st.DrawFn, min_k: int = 0, min_length: int = 1) -> Case:
    """Distributions float32 [T, V], token ids [T] and k, with ties, certainties and impossible tokens."""
    vocabulary = draw(st.integers(2, 12))
    length = draw(st.integers(min_length, 6))
    k = draw(st.integers(min_k, 14))
    logit = st.sampled_from([-np.inf, -40.0, -3.0, -1.5, -1.0, 0.0, 0.0, 2.0, 30.0])
    logits = np.asarray(
        [draw(st.lists(logit, min_size=vocabulary, max_size=vocabulary)) for _ in range(length)]
    )
    logits[:, 0] = np.where(np.isneginf(logits).all(axis=1), 0.0, logits[:, 0])
    logprobs = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)
    ids = draw(st.lists(st.integers(0, vocabulary - 1), min_size=length, max_size=length))
    return logprobs, ids, k


@given(cases())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_rendered_distribution_comes_back(case: Case) -> None:
    logprobs, ids, k = case
    scores = parse(render(logprobs, ids, k), ids, k, model="m")
    assert scores.ids.shape == scores.logprobs.shape == (len(ids) - 1, k + 1)
    assert (scores.ids.dtype, scores.logprobs.dtype) == (np.int32, np.float32)
    assert (scores.start, scores.model) == (1, "m")
    for position, (row_ids, row_logprobs) in enumerate(
        zip(scores.ids, scores.logprobs, strict=True), start=1
    ):
        truth, token = logprobs[position], ids[position]
        top = [i for i in np.argsort(-truth, kind="stable")[:k] if i != token]
        wanted = [token, *top]
        wanted = [ABSENT_ID if np.isneginf(truth[i]) else int(i) for i in wanted]
        assert row_ids.tolist() == wanted + [ABSENT_ID] * (k + 1 - len(wanted))
        for token_id, logprob in zip(row_ids, row_logprobs, strict=True):
            assert logprob == (truth[token_id] if token_id != ABSENT_ID else -np.inf)


@given(cases(min_length=2), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_order_of_members_does_not_matter(case: Case, random: Any) -> None:
    logprobs, ids, k = case
    reply = render(logprobs, ids, k)
    shuffled = [None]
    for row in reply[1:]:
        assert row is not None
        members = list(row.items())
        random.shuffle(members)
        shuffled.append(dict(members))
    first, second = (parse(one, ids, k) for one in (reply, shuffled))
    assert np.array_equal(first.ids, second.ids)
    assert np.array_equal(first.logprobs, second.logprobs)


def _drop_row(reply: list[Any], ids: list[int], at: int) -> None:
    del reply[at]


def _repeat_row(reply: list[Any], ids: list[int], at: int) -> None:
    reply.append(reply[at])


def _null_row(reply: list[Any], ids: list[int], at: int) -> None:
    reply[at] = None


def _empty_row(reply: list[Any], ids: list[int], at: int) -> None:
    reply[at] = {}


def _score_first_row(reply: list[Any], ids: list[int], at: int) -> None:
    reply[0] = reply[at]


def _not_a_number(reply: list[Any], ids: list[int], at: int) -> None:
    next(iter(reply[at].values()))["logprob"] = float("nan")


def _null_logprob(reply: list[Any], ids: list[int], at: int) -> None:
    next(iter(reply[at].values()))["logprob"] = None


def _text_logprob(reply: list[Any], ids: list[int], at: int) -> None:
    next(iter(reply[at].values()))["logprob"] = "-1.0"


def _certain_twice(reply: list[Any], ids: list[int], at: int) -> None:
    for member in reply[at].values():
        member["logprob"] = 0.0


def _logits(reply: list[Any], ids: list[int], at: int) -> None:
    for member in reply[at].values():
        member["logprob"] += 12.0


def _infinite(reply: list[Any], ids: list[int], at: int) -> None:
    next(iter(reply[at].values()))["logprob"] = float("inf")


def _no_rank(reply: list[Any], ids: list[int], at: int) -> None:
    del next(iter(reply[at].values()))["rank"]


def _null_rank(reply: list[Any], ids: list[int], at: int) -> None:
    next(iter(reply[at].values()))["rank"] = None


def _rank_zero(reply: list[Any], ids: list[int], at: int) -> None:
    next(iter(reply[at].values()))["rank"] = 0


def _rank_twice(reply: list[Any], ids: list[int], at: int) -> None:
    ranked = [member for member in reply[at].values() if member["rank"] <= 3]
    ranked[0]["rank"] = ranked[1]["rank"]


def _ranks_swapped(reply: list[Any], ids: list[int], at: int) -> None:
    by_rank = {member["rank"]: member for member in reply[at].values()}
    by_rank[1]["rank"], by_rank[3]["rank"] = 3, 1


def _token_missing(reply: list[Any], ids: list[int], at: int) -> None:
    row = reply[at]
    row["49"] = row.pop(str(ids[at]))


def _too_short(reply: list[Any], ids: list[int], at: int) -> None:
    by_rank = {member["rank"]: key for key, member in reply[at].items()}
    del reply[at][next(by_rank[rank] for rank in (3, 2) if by_rank[rank] != str(ids[at]))]


def _too_long(reply: list[Any], ids: list[int], at: int) -> None:
    reply[at]["48"] = {"logprob": -30.0, "rank": 40, "decoded_token": "x"}


def _id_negative(reply: list[Any], ids: list[int], at: int) -> None:
    row = reply[at]
    row["-1"] = row.pop(next(key for key in row if key != str(ids[at])))


def _id_spelled_otherwise(reply: list[Any], ids: list[int], at: int) -> None:
    row = reply[at]
    key = next(key for key in row if key != str(ids[at]))
    row["0" + key] = row.pop(key)


def _id_huge(reply: list[Any], ids: list[int], at: int) -> None:
    row = reply[at]
    row[str(2**31)] = row.pop(next(key for key in row if key != str(ids[at])))


def _id_text(reply: list[Any], ids: list[int], at: int) -> None:
    row = reply[at]
    row["token"] = row.pop(next(key for key in row if key != str(ids[at])))


def _rows_swapped(reply: list[Any], ids: list[int], at: int) -> None:
    # A row that also ranks the other token could not be told from the right one.
    other = next(p for p in range(1, len(ids)) if p != at and str(ids[at]) not in reply[p])
    reply[at], reply[other] = reply[other], reply[at]


MUTATIONS = [value for name, value in list(globals().items()) if name.startswith("_") and callable(value)]


@given(st.sampled_from(MUTATIONS), st.integers(0, 2**31), st.data())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_a_damaged_reply_is_refused_whole(mutate: Any, seed: int, data: st.DataObject) -> None:
    generator = np.random.default_rng(seed)
    # 48 and 49 stay outside the sequence and the top-3, so that a mutation can name them.
    ids = generator.permutation(40)[:6].tolist()
    logprobs = fake_logprobs(ids, seed=seed)
    logprobs[:, 45:] = -60.0
    reply: list[Any] = copy.deepcopy(render(logprobs, ids, 3))
    parse(reply, ids, 3)
    mutate(reply, ids, data.draw(st.integers(1, len(ids) - 1)))
    with pytest.raises(TeacherError) as caught:
        parse(reply, ids, 3)
    assert caught.value.code == "teacher.bad_reply"


@pytest.mark.parametrize("reply", [None, {}, "null", 7, [], [None], [None, None], [{}, None, None]])
def test_what_is_no_list_of_rows_is_refused(reply: Any) -> None:
    with pytest.raises(TeacherError):
        parse(reply, [1, 2, 3], 1)


@pytest.mark.parametrize(
    "row", [7, [], "x", {"5": 7}, {"5": None}, {"5": {"rank": 1}}, {"5": {"logprob": True, "rank": 1}}]
)
def test_a_row_of_another_shape_is_refused(row: Any) -> None:
    with pytest.raises(TeacherError):
        parse([None, row], [1, 5], 0)


def test_a_token_likelier_than_the_top_k_it_is_not_in_is_refused() -> None:
    row = {"5": {"logprob": -0.5, "rank": 9}, "6": {"logprob": -1.0, "rank": 1}}
    with pytest.raises(TeacherError, match="fall with the rank"):
        parse([None, row], [1, 5], 1)


def test_few_members_are_refused_in_a_large_vocabulary_even_when_they_hold_all_probability() -> None:
    logprobs = np.full((3, 50), -50.0, dtype=np.float32)
    logprobs[:, 7] = 0.0
    reply: list[Any] = render(logprobs, [1, 7, 7], 3)
    row = reply[2]
    del row[next(key for key, member in row.items() if member["rank"] == 3)]
    with pytest.raises(TeacherError):
        parse(reply, [1, 7, 7], 3)


def test_the_refusal_names_the_position() -> None:
    ids = [3, 4, 5, 6]
    reply: list[Any] = render(fake_logprobs(ids), ids, 2)
    reply[2] = render_row(fake_logprobs(ids)[2], 9, 2)
    with pytest.raises(TeacherError, match=r"rows\[1\]"):
        parse(reply, ids, 2)


def test_a_logprob_of_minus_9999_is_absent_by_id() -> None:
    row = {
        "5": {"logprob": -9999.0, "rank": 3},
        "6": {"logprob": 0.0, "rank": 1},
        "7": {"logprob": -9999.0, "rank": 2},
    }
    scores = parse([None, row], [1, 5], 2)
    assert scores.ids.tolist() == [[ABSENT_ID, 6, ABSENT_ID]]
    assert scores.logprobs.tolist() == [[-np.inf, 0.0, -np.inf]]


def test_one_token_gives_no_rows() -> None:
    scores = parse([None], [5], 2)
    assert scores.ids.shape == scores.logprobs.shape == (0, 3)
    assert to_lists(scores, 1) == ([[-1, -1, -1]], [[-9999.0, -9999.0, -9999.0]])


@pytest.mark.parametrize(
    ("name", "k"), [("prompt_logprobs_0", 0), ("prompt_logprobs_4", 4), ("prompt_logprobs_true", 1)]
)
def test_recorded_replies_of_a_real_vllm_parse_to_their_own_numbers(name: str, k: int) -> None:
    rows = recorded_body("completions", name)["choices"][0]["prompt_logprobs"]
    scores = parse(rows, IDS, k)
    assert scores.ids[:, 0].tolist() == IDS[1:]
    for row, ids, logprobs in zip(rows[1:], scores.ids.tolist(), scores.logprobs, strict=True):
        present = {str(i): lp for i, lp in zip(ids, logprobs, strict=True) if i != ABSENT_ID}
        assert present.keys() == row.keys()
        assert all(np.float32(row[key]["logprob"]) == value for key, value in present.items())
        top = [row[str(i)]["rank"] for i in ids[1:] if i != ABSENT_ID]
        assert top == sorted(top)


def test_recorded_reply_of_one_token_has_no_rows() -> None:
    rows = recorded_body("completions", "prompt_logprobs_one_token")["choices"][0]["prompt_logprobs"]
    assert len(parse(rows, IDS[:1], 2).ids) == 0


def test_lists_hold_absent_entries_as_json_can_write_them() -> None:
    ids = [2, 9, 4]
    logprobs = fake_logprobs(ids)
    scores = parse(render(logprobs, ids, 2), ids, 2)
    token_ids, values = to_lists(scores, 3)
    assert token_ids[0] == [-1, -1, -1]
    assert values[0] == [-9999.0] * 3
    assert token_ids[1:] == scores.ids.tolist()
    present = scores.ids != ABSENT_ID
    assert np.array_equal(np.asarray(values[1:], dtype=np.float32)[present], scores.logprobs[present])
    assert (np.asarray(values[1:])[~present] == -9999.0).all()


@pytest.mark.parametrize("start", [1, 3, 5])
def test_rows_before_the_start_are_cut(start: int) -> None:
    ids = [2, 9, 4, 7, 7, 1]
    rows = render(fake_logprobs(ids), ids, 3)
    whole, scores = parse(rows, ids, 3), parse(rows, ids, 3, start=start)
    assert scores.start == start
    assert np.array_equal(scores.ids, whole.ids[start - 1 :])
    assert np.array_equal(scores.logprobs, whole.logprobs[start - 1 :])


def test_a_wrong_row_before_the_start_condemns_the_reply() -> None:
    ids = [2, 9, 4, 7, 7, 1]
    rows: list[Any] = render(fake_logprobs(ids), ids, 3)
    rows[1] = render_row(fake_logprobs(ids)[1], 40, 3)
    with pytest.raises(TeacherError, match=r"rows\[0\]"):
        parse(rows, ids, 3, start=4)

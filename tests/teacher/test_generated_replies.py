"""Of thousands of replies, right and damaged, no wrong value comes out and no right one is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from atroposlib.errors import TeacherError
from atroposlib.teacher import completions, echo, generate, sglang
from atroposlib.teacher.binary import decode_answer, encode_answer
from atroposlib.teacher.protocol import LogprobDtype, Question
from atroposlib.types import ABSENT_ID, TeacherScores
from tests.support.reply_render import RENDERERS, Truth, expected, random_truth

REPLIES = 1400
"""Of each form; a third of them are right."""

VOCABULARY = 300

Read = Callable[[bytes, Question], TeacherScores]
Reply = dict[str, Any]
Damage = Callable[[Reply, Question, np.random.Generator], Any]

READERS: dict[str, Read] = {
    "completions": completions.read,
    "generate": generate.read,
    "echo": echo.read,
    **{name: sglang.read for name in RENDERERS if name.startswith("sglang")},
}


def rows_of(reply: Reply) -> list[Any]:
    """The list that holds one entry a position, in whatever form."""
    if "meta_info" in reply:
        meta = reply["meta_info"]
        return meta.get("input_top_logprobs") or meta["input_token_logprobs"]
    if "prompt_logprobs" in reply:
        return reply["prompt_logprobs"]
    choice = reply["choices"][0]
    return choice["logprobs"]["top_logprobs"] if "logprobs" in choice else choice["prompt_logprobs"]


def at(rows: list[Any], generator: np.random.Generator) -> int:
    return int(generator.integers(1, len(rows)))


def short(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    rows = rows_of(reply)
    del rows[at(rows, generator)]


def long(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    rows = rows_of(reply)
    rows.append(rows[at(rows, generator)])


def null_row(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    rows = rows_of(reply)
    rows[at(rows, generator)] = None


def empty_row(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    rows = rows_of(reply)
    rows[at(rows, generator)] = type(rows[-1])()


def leaves(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) under which a logprob stands."""
    found = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            found += leaves(inner)
        elif isinstance(inner, float):
            found.append((value, key))
    return found


def set_leaf(value: Any) -> Damage:
    """One logprob, anywhere, becomes ``value``."""

    def damage(reply: Reply, question: Question, generator: np.random.Generator) -> None:
        found = leaves(reply)
        container, key = found[int(generator.integers(len(found)))]
        container[key] = value

    return damage


def every_leaf(change: Callable[[float], float]) -> Damage:
    """All logprobs become others, as those of a server that answers something else than logprobs."""

    def damage(reply: Reply, question: Question, generator: np.random.Generator) -> bool:
        # A single number a row can be any; what is encoded is not found.
        if question.k < 2 or "input_top_logprobs_val_flat_b64" in reply.get("meta_info", {}):
            return False
        for container, key in leaves(reply):
            container[key] = change(container[key])
        return True

    return damage


def missing(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    inner = [key for key, value in reply.items() if isinstance(value, dict | list)]
    del reply[inner[int(generator.integers(len(inner)))]]


def cut(text: str, generator: np.random.Generator) -> str:
    return text[: int(generator.integers(len(text) - 1))]


DAMAGES: dict[str, Damage] = {
    "short": short,
    "long": long,
    "null row": null_row,
    "empty row": empty_row,
    "NaN": set_leaf(float("nan")),
    "infinite": set_leaf(float("inf")),
    "null": set_leaf(None),
    "text": set_leaf("-1.0"),
    "a list": set_leaf([]),
    "true": set_leaf(True),
    "above 0": set_leaf(0.7),
    "beyond a float": set_leaf(1e300),
    "sums above 1": every_leaf(lambda value: value * 0.02),
    "logits": every_leaf(lambda value: value + 11.0),
    "no probabilities": every_leaf(lambda value: value - 40.0),
    "missing": missing,
}


# What only one kind of reply can suffer.


def pick(rows: list[Any], generator: np.random.Generator, fits: Callable[[int], bool]) -> int | None:
    found = [index for index in range(1, len(rows)) if fits(index)]
    return int(generator.choice(found)) if found else None


def swapped_rows(reply: Reply, question: Question, generator: np.random.Generator) -> bool:
    rows, first = rows_of(reply), at(rows_of(reply), generator)
    # A row that also ranks the other token could be that token's row.
    token = name(reply, int(question.ids[first]))
    other = pick(rows, generator, lambda index: token not in rows[index])
    if other is None:
        return False
    rows[first], rows[other] = rows[other], rows[first]
    return True


def name(reply: Reply, token: int) -> str:
    return f"token_id:{token}" if "logprobs" in reply["choices"][0] and is_echo(reply) else str(token)


def is_echo(reply: Reply) -> bool:
    return "prompt_logprobs" not in reply and "prompt_logprobs" not in reply["choices"][0]


def wrong_token(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    rows = rows_of(reply)
    row = rows[at(rows, generator)]
    position = next(index for index, one in enumerate(rows) if one is row)
    row[name(reply, VOCABULARY + 7)] = row.pop(name(reply, int(question.ids[position])))


def negative_id(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    rows = rows_of(reply)
    row = rows[at(rows, generator)]
    key = str(generator.choice(list(row)))
    row[key.replace(":", ":-") if ":" in key else f"-{int(key) + 1}"] = row.pop(key)


def member_of(reply: Reply, generator: np.random.Generator) -> dict[str, Any]:
    rows = rows_of(reply)
    row = rows[at(rows, generator)]
    return row[str(generator.choice(list(row)))]


def rank_zero(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    member_of(reply, generator)["rank"] = 0


def no_rank(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    del member_of(reply, generator)["rank"]


def half_a_rank(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    member_of(reply, generator)["rank"] = 1.5


def ranked(reply: Reply, question: Question, generator: np.random.Generator) -> list[dict[str, Any]]:
    rows = rows_of(reply)
    return [m for m in rows[at(rows, generator)].values() if m["rank"] <= question.k]


def rank_twice(reply: Reply, question: Question, generator: np.random.Generator) -> bool:
    members = ranked(reply, question, generator)
    if len(members) < 2:
        return False
    members[0]["rank"] = members[1]["rank"]
    return True


def ranks_swapped(reply: Reply, question: Question, generator: np.random.Generator) -> bool:
    members = ranked(reply, question, generator)
    if len(members) < 2 or abs(members[0]["logprob"] - members[-1]["logprob"]) < 0.01:
        return False
    members[0]["rank"], members[-1]["rank"] = members[-1]["rank"], members[0]["rank"]
    return True


def dropped_member(reply: Reply, question: Question, generator: np.random.Generator) -> None:
    rows = rows_of(reply)
    row = rows[at(rows, generator)]
    del row[str(generator.choice(list(row)))]


def impossible(reply: Reply, question: Question, generator: np.random.Generator) -> bool:
    members = ranked(reply, question, generator)
    if len(members) < 2:
        return False
    min(members, key=lambda member: int(member["rank"]))["logprob"] = -9999.0
    return True


def shuffled_tokens(reply: Reply, question: Question, generator: np.random.Generator) -> bool:
    rows = reply["meta_info"]["input_token_logprobs"]
    first = at(rows, generator)
    other = pick(rows, generator, lambda index: rows[index][1] != rows[first][1])
    if other is None:
        return False
    rows[first], rows[other] = rows[other], rows[first]
    return True


def other_size(reply: Reply, question: Question, generator: np.random.Generator) -> bool:
    shape = reply["meta_info"].get("input_top_logprobs_shape")
    if shape is None:
        return False
    shape[int(generator.integers(2))] += 2
    return True


BY_ROWS: dict[str, Damage] = {
    "swapped rows": swapped_rows,
    "wrong token": wrong_token,
    "negative id": negative_id,
    "rank zero": rank_zero,
    "no rank": no_rank,
    "half a rank": half_a_rank,
    "rank twice": rank_twice,
    "ranks swapped": ranks_swapped,
    "dropped member": dropped_member,
    "impossible": impossible,
}
OWN: dict[str, dict[str, Damage]] = {
    "completions": BY_ROWS,
    "generate": BY_ROWS,
    # Without ranks a row that lacks a member looks like one whose standing token is inside the top-k.
    "echo": {"swapped rows": swapped_rows, "wrong token": wrong_token, "negative id": negative_id},
    "sglang": {"shuffled": shuffled_tokens, "other size": other_size},
}

NOT_FOUND = {
    "sglang b64": {"sums above 1", "logits", "no probabilities"},
    "sglang nested": {"other size"},
}
"""What a form has no place for."""


def is_true(scores: TeacherScores, wanted: TeacherScores, tolerance: float = 0.0) -> bool:
    """Whether everything that is there is the truth, and everything true is there."""
    if scores.start != wanted.start or not np.array_equal(scores.ids, wanted.ids):
        return False
    present = wanted.ids != ABSENT_ID
    error = np.abs(scores.logprobs[present] - wanted.logprobs[present])
    return bool((error <= tolerance * np.abs(wanted.logprobs[present])).all())


def draw(generator: np.random.Generator) -> tuple[Truth, Question]:
    length = int(generator.integers(3, 9))
    k = int(generator.choice([0, 1, 2, 5, 9]))
    # Tokens that a model would sample, so that about half of them are inside the top-k.
    truth = random_truth(generator, length, VOCABULARY)
    ids = [int(generator.choice(np.argsort(-row)[: generator.choice([k + 1, VOCABULARY])])) for row in truth]
    start = int(generator.integers(1, length))
    return truth, Question(np.asarray(ids, dtype=np.int32), k, start)


@pytest.mark.parametrize("form", RENDERERS)
def test_of_damaged_replies_nothing_wrong_comes_out(form: str) -> None:
    generator = np.random.default_rng(len(form))
    read, render = READERS[form], RENDERERS[form]
    damages = {**DAMAGES, **OWN[form.split()[0]]}
    names = list(damages)
    seen: Counter[str] = Counter()
    for number in range(REPLIES):
        truth, question = draw(generator)
        reply = render(truth, question)
        if number % 3 == 0:
            assert is_true(read(json.dumps(reply).encode(), question), expected(truth, question))
            seen["right"] += 1
            continue
        what = str(generator.choice(names))
        if damages[what](reply, question, generator) is False:
            continue
        seen[what] += 1
        body = json.dumps(reply).encode()
        scores = refused(partial(read, body, question))
        assert scores is None or is_true(scores, expected(truth, question)), (what, reply)
    assert set(seen) == {"right", *names} - NOT_FOUND.get(form, set())


def refused(read: Callable[[], TeacherScores]) -> TeacherScores | None:
    """None for a damaged reply that is refused, what comes out of one whose values are as they were."""
    try:
        return read()
    except TeacherError as error:
        if error.code != "teacher.bad_reply":
            raise
        return None


@pytest.mark.parametrize("form", RENDERERS)
def test_a_reply_that_breaks_off_is_refused(form: str) -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        truth, question = draw(generator)
        with pytest.raises(TeacherError):
            READERS[form](cut(json.dumps(RENDERERS[form](truth, question)), generator).encode(), question)


@pytest.mark.parametrize("form", ["completions", "generate", "echo"])
def test_a_token_that_stands_in_a_row_twice_is_refused(form: str) -> None:
    pattern = {"echo": r'("token_id:\d+"): -\d+\.\d+'}.get(form, r'("\d+"): \{"logprob"[^}]*\}')
    generator = np.random.default_rng(0)
    for _ in range(150):
        truth, question = draw(generator)
        if question.k == 0:
            continue
        text = json.dumps(RENDERERS[form](truth, question))
        found = list(re.finditer(pattern, text))
        member = found[int(generator.integers(len(found)))]
        twin = re.sub(r"-\d+\.\d+(e-\d+)?", "-6.5", member[0], count=1)
        with pytest.raises(TeacherError):
            READERS[form]((text[: member.start()] + f"{twin}, " + text[member.start() :]).encode(), question)


def array_damages(scores: TeacherScores, generator: np.random.Generator) -> dict[str, Callable[[], object]]:
    """Damages of the arrays that a binary answer carries, each certain to make them wrong."""
    ids, logprobs = scores.ids, scores.logprobs
    row = int(generator.integers(len(ids)))

    def put(array: np.ndarray, column: int, value: float) -> Callable[[], object]:
        return lambda: array.__setitem__((row, column), value)

    damages = {
        "wrong token": put(ids, 0, VOCABULARY + 3),
        "negative id": put(ids, -1, -7),
        "NaN": put(logprobs, int(generator.integers(logprobs.shape[1])), np.nan),
        "infinite": put(logprobs, 0, np.inf),
        "above 0": put(logprobs, 0, 0.7),
        "an id of no probability": put(logprobs, 0, -np.inf),
    }
    if ids.shape[1] > 2:
        damages["sums above 1"] = lambda: np.multiply(logprobs, 0.02, out=logprobs)
    if ids.shape[1] > 2 and ids[row, 2] != ABSENT_ID:
        damages["twice"] = put(ids, 1, ids[row, 2])
        damages["rising"] = put(logprobs, 1, float(logprobs[row, 2]) - 0.5)
        damages["hole"] = put(ids, 1, ABSENT_ID)
    return damages


def read_arrays(body: bytes, question: Question) -> TeacherScores:
    return decode_answer(body, [question])[0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_of_damaged_arrays_nothing_wrong_comes_out(dtype: LogprobDtype) -> None:
    generator = np.random.default_rng(3)
    tolerance = 2.0**-11 if dtype == "float16" else 0.0
    for number in range(REPLIES):
        truth, asked = draw(generator)
        question = Question(asked.ids, asked.k, asked.start, dtype=dtype)
        wanted = expected(truth, question)
        sent = TeacherScores(wanted.ids.copy(), wanted.logprobs.copy(), question.start, "truth")
        if number % 3 == 0:
            assert is_true(read_arrays(encode_answer([sent], dtype), question), wanted, tolerance)
            continue
        damages = array_damages(sent, generator)
        what = str(generator.choice(list(damages)))
        damages[what]()
        body = encode_answer([sent], dtype)
        got = refused(partial(read_arrays, body, question))
        assert got is None or is_true(got, wanted, tolerance), what

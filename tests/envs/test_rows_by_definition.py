"""From masks, contexts and limits to what the loss sees: each row against the teacher's truth at its place.

The expectation is written position by position, over plain lists; environment, offline scoring, wire and
collate are asked for theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.collate import train_sequences
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import PLAIN_NAME
from atroposlib.envs.teacher_context import ContextRenderer, template_of
from atroposlib.envs.tokenizer import read_tokenizer
from atroposlib.scoring.asking import JobTeacher, Panel
from atroposlib.scoring.counts import Counts
from atroposlib.scoring.rows import read_row
from atroposlib.teacher.protocol import Capabilities
from atroposlib.types import Group
from atroposlib.wire.arrays import to_arrays
from atroposlib.wire.frame import decode_group, encode_group
from tests.envs.fake_teachers import VOCABULARY, FakeTeacher, install, row, server_of, truth
from tests.envs.test_several_teachers import Config, Env

HINT = "hint: "
QUESTION = {"role": "user", "content": "q"}


@dataclass(frozen=True)
class Case:
    """A group and what is asked about it; ``context`` is none, text or chat."""

    tokens: list[list[int]]
    masks: list[list[int]]
    positions: str
    top_k: int
    student_top_k: int
    longest: int | None
    context: str

    def group(self) -> dict[str, Any]:
        group: dict[str, Any] = {
            "tokens": self.tokens,
            "masks": self.masks,
            "scores": [0.0] * len(self.tokens),
        }
        if self.context == "chat":
            group["messages"] = [[QUESTION, {"role": "assistant", "content": "?"}] for _ in self.tokens]
        return group

    def teacher(self, tokenizer_dir: Path) -> TeacherConfig:
        given: dict[str, Any] = {"base_url": "http://t", "tokenizer_name": str(tokenizer_dir)}
        if self.context != "none":
            given["system_prompt"] = HINT
        if self.context == "text":
            given["chat_template"] = None
        return TeacherConfig(**given)


def rendered(tokenizer: Any, *messages: dict[str, str]) -> list[int]:
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def case_of(seed: int, tokenizer: Any) -> Case:
    chance = np.random.default_rng(seed)
    context = str(chance.choice(["none", "text", "chat"]))
    prompt = rendered(tokenizer, QUESTION) if context == "chat" else []
    tokens, masks = [], []
    for _ in range(int(chance.integers(1, 4))):
        ids = chance.integers(0, 250, int(chance.integers(1, 12))).tolist()
        mask = [token if chance.random() < 0.6 else -100 for token in ids]
        if context == "chat":
            mask[0] = ids[0]
        tokens.append(prompt + ids)
        masks.append([-100] * len(prompt) + mask)
    return Case(
        tokens,
        masks,
        positions=str(chance.choice(["completion", "all"])),
        top_k=int(chance.integers(0, 5)),
        student_top_k=int(chance.integers(0, 4)),
        longest=int(chance.integers(3, 60)) if chance.random() < 0.4 else None,
        context=context,
    )


def what_is_read(case: Case, tokenizer: Any, index: int) -> tuple[list[int], int, int]:
    """The teacher's ids of a sequence, the first position it can have a row at, and the shift of its rows."""
    tokens = case.tokens[index]
    if case.context == "none":
        return tokens, 1, 0
    if case.context == "text":
        hint = tokenizer.encode(HINT, add_special_tokens=False)
        return hint + tokens, 1, len(hint)
    cut = len(rendered(tokenizer, QUESTION))
    prompt = rendered(tokenizer, {"role": "system", "content": HINT}, QUESTION)
    return prompt + tokens[cut:], cut, len(prompt) - cut


def expected(case: Case, tokenizer: Any) -> list[dict[int, dict[int, float]]]:
    """Sequence by sequence: position -> token -> logprob."""
    found: list[dict[int, dict[int, float]]] = []
    for index, tokens in enumerate(case.tokens):
        read, first, shift = what_is_read(case, tokenizer, index)
        rows: dict[int, dict[int, float]] = {}
        for position in range(first, len(tokens)):
            kept = case.positions == "all" or case.masks[index][position] != -100
            if not kept or (case.longest is not None and position + shift >= case.longest):
                continue
            columns = row("teacher", read, position + shift, case.top_k)[0]
            if case.student_top_k:
                columns = columns + row("student", tokens, position, case.student_top_k)[0][1:]
            table = truth("teacher", read[: position + shift])
            rows[position] = {column: float(table[column]) for column in columns if column >= 0}
        found.append(rows)
    return found


def rows_of(group: Group) -> list[dict[int, dict[int, float]]]:
    """The same of a group's targets; an id that stands twice in a row is a failure."""
    found: list[dict[int, dict[int, float]]] = []
    at = 0
    for index in range(len(group.tokens)):
        rows: dict[int, dict[int, float]] = {}
        if group.targets is not None:
            start, count = int(group.targets.starts[index]), int(group.targets.counts[index])
            for position in range(start, start + count):
                ids, logprobs = group.targets.ids[at].tolist(), group.targets.logprobs[at].tolist()
                named = {one: logprob for one, logprob in zip(ids, logprobs, strict=True) if one >= 0}
                assert len(named) == sum(one >= 0 for one in ids)
                if named:
                    assert ids[0] == group.tokens[index][position]
                    rows[position] = named
                at += 1
        found.append(rows)
    return found


def check(case: Case, tokenizer: Any, group: Group) -> None:
    wanted = expected(case, tokenizer)
    assert rows_of(group) == [
        {position: pytest.approx(columns) for position, columns in rows.items()} for rows in wanted
    ]
    # What the loss sees: logits at p - 1 speak of token p, at trained positions alone.
    sequences, _ = train_sequences([group], max_token_len=1000, vocab_size=VOCABULARY)
    seen = [
        {
            int(position) + 1: set(ids[ids >= 0].tolist())
            for position, ids in zip(rows.positions, rows.ids, strict=True)
        }
        for one in sequences
        for rows in one.rows.values()
    ]
    trained = [
        {position: set(columns) for position, columns in rows.items() if mask[position] != -100}
        for rows, mask in zip(wanted, case.masks, strict=True)
    ]
    assert seen == [rows for rows in trained if rows]


class Student:
    """The student's server as a teacher of itself."""

    servers: tuple[Any, ...] = ()

    async def score(self, ids: Sequence[int], top_k: int, start: int = 1) -> Any:
        return await FakeTeacher("student").score(ids, top_k, start)


def teacher_of(case: Case) -> FakeTeacher:
    teacher = FakeTeacher("teacher")
    room = None if case.longest is None else case.longest + 1
    teacher.capabilities = [Capabilities("plugin", "vllm", "m", max_model_len=room, extra_ids=True)]
    return teacher


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Any:
    return read_tokenizer(str(tokenizer_dir))


@pytest.mark.parametrize("seed", range(60))
async def test_rows_of_an_environment(seed: int, tokenizer_dir: Path, tokenizer: Any) -> None:
    case = case_of(seed, tokenizer)
    config = Config(
        tokenizer_name=str(tokenizer_dir),
        teacher_enabled=True,
        teacher_top_k=case.top_k,
        teacher_positions=case.positions,
        student_top_k=case.student_top_k,
    )
    env: Any = Env(config, [], testing=True, teacher_server_configs=[server_of(tokenizer_dir)])
    install(env, {PLAIN_NAME: teacher_of(case)}, **{PLAIN_NAME: case.teacher(tokenizer_dir)})
    env.server = Student()
    out = await env._attach_teacher_distillation(case.group())
    counters, scored = env.runtime.counters, sum(map(len, expected(case, tokenizer)))
    covered = counters.teachers[PLAIN_NAME]
    assert covered.wanted == covered.scored + counters.masked.total()
    assert covered.scored == scored
    if out is None or not scored:
        assert scored == 0
        return
    frame = encode_group(to_arrays(out, strict=True), logprob_dtype="float32")
    check(case, tokenizer, decode_group(frame))


@pytest.mark.parametrize("seed", range(60))
async def test_rows_of_offline_scoring(seed: int, tokenizer_dir: Path, tokenizer: Any) -> None:
    case = replace(case_of(seed, tokenizer), student_top_k=0)
    own = case.teacher(tokenizer_dir)
    renderer = ContextRenderer(tokenizer, tokenizer, template_of(PLAIN_NAME, own, tokenizer))
    job = JobTeacher(own, teacher_of(case), renderer, case.longest, "")
    panel = Panel({PLAIN_NAME: job}, top_k=case.top_k, positions=case.positions, max_token_length=None)
    read = read_row(0, case.group(), None)
    counts = Counts()
    group = panel.build(await panel.ask(read, panel.errands(read)), counts)
    scored = sum(map(len, expected(case, tokenizer)))
    told = counts.teachers[PLAIN_NAME]
    assert told.positions == scored
    assert told.scored + told.masked.total() == len(case.tokens)
    assert (group is None) == (not scored)
    if group is not None:
        check(case, tokenizer, decode_group(encode_group(group, logprob_dtype="float32")))

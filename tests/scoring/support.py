"""Jobs over a scorer that needs no server: what it answers is told by the ids alone."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.teacher import TeacherConfig
from atroposlib.scoring.asking import JobTeacher, Panel
from atroposlib.scoring.chat import Chat
from atroposlib.scoring.counts import Counts
from atroposlib.scoring.plan import open_plan
from atroposlib.scoring.source import open_source
from atroposlib.scoring.worker import Job, Worker
from atroposlib.teacher.protocol import Scorer
from atroposlib.types import ABSENT_ID, Group, TeacherScores
from atroposlib.wire.batch import split_batch
from atroposlib.wire.frame import decode_group

TOP_K = 2

Before = Callable[[Sequence[int]], Awaitable[None]]


async def at_once(ids: Sequence[int]) -> None:
    """Nothing comes before an answer."""


class TellingScorer:
    """Scores any sequence; ``before`` may wait, or raise.

    Attributes:
        asked: The ids, k and start of every question.
    """

    def __init__(self, before: Before = at_once) -> None:
        self.asked: list[tuple[list[int], int, int]] = []
        self._before = before

    async def score(
        self, ids: Sequence[int], k: int, start: int = 1, extra_ids: NDArray[np.int32] | None = None
    ) -> TeacherScores:
        """Column 0 is the token with a logprob that its id tells, the others are ids above 1000."""
        self.asked.append((list(ids), k, start))
        await self._before(ids)
        tokens = np.array(ids[start:], np.int32)
        columns = np.tile(1000 + np.arange(k, dtype=np.int32), (len(tokens), 1))
        logprobs = np.tile(np.float32([-2.0 - column for column in range(k)]), (len(tokens), 1))
        return TeacherScores(
            ids=np.concatenate([tokens[:, None], columns], axis=1),
            logprobs=np.concatenate([told_logprob(tokens)[:, None], logprobs], axis=1),
            start=start,
            model="telling",
        )


def told_logprob(tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """What the scorer says of a token that stands in a sequence; exact in float16."""
    return (-4.0 - (tokens % 8)).astype(np.float32)


class Silent:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tell(self, rows: int, own: Counts) -> None:
        """Keep the number of rows."""
        self.told.append(rows)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any] | str]) -> Path:
    """A file of JSON lines; a text stands as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def token_rows(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    """Rows of six tokens of which the last three are trained; token 1 is the row's number."""
    rows = []
    for number in range(first, first + count):
        tokens = [5, number, 6, 7, number, 8]
        rows.append({"tokens": tokens, "masks": [-100] * 3 + tokens[3:]})
    return rows


def panel_of(
    scorers: Mapping[str, Scorer], configs: Mapping[str, TeacherConfig] | None = None, **changes: Any
) -> Panel:
    """A panel of scorers by name."""
    given = configs or {}
    teachers = {
        name: JobTeacher(given.get(name, TeacherConfig()), scorer, None, changes.pop("longest", None), "")
        for name, scorer in scorers.items()
    }
    settings = {"top_k": TOP_K, "positions": "completion", "max_token_length": None} | changes
    return Panel(teachers, **settings)


def job_of(
    directory: Path,
    path: Path,
    panel: Panel,
    *,
    rows_per_shard: int = 4,
    chat: Chat | None = None,
    **changes: Any,
) -> Job:
    """A job over a file."""
    source = open_source(path)
    plan = open_plan(directory, source, path, rows_per_shard, {"k": TOP_K})
    settings: dict[str, Any] = {"dtype": "float16", "tokens_ahead": 64, "stop_after_failures": 4} | changes
    return Job(directory=directory, plan=plan, source=source, panel=panel, chat=chat, **settings)


async def work(job: Job) -> list[int]:
    """Do the job; returns how many rows were done whenever that was told."""
    silent = Silent()
    await Worker(job, silent).run()
    return silent.told


def stored(directory: Path) -> list[Group]:
    """The groups of all shards in their order."""
    files = sorted((directory / "shards").glob("*.frames"))
    return [decode_group(frame) for file in files for frame in split_batch(file.read_bytes())]


def numbers(groups: Iterable[Group]) -> list[int]:
    """The rows that groups were made of, as their ids tell."""
    return [int(group.rest["group_id"].removeprefix("row-")) for group in groups]


def check_told(group: Group) -> None:
    """Every trained position of the group has the scorer's targets, and no other position has any."""
    assert group.targets is not None
    row = 0
    for index, (tokens, mask) in enumerate(zip(group.tokens, group.masks, strict=True)):
        start, count = int(group.targets.starts[index]), int(group.targets.counts[index])
        trained = [position for position in range(1, len(tokens)) if mask[position] != -100]
        covered = []
        for position in range(start, start + count):
            ids, logprobs = group.targets.ids[row], group.targets.logprobs[row]
            row += 1
            if (ids == ABSENT_ID).all():
                continue
            covered.append(position)
            assert ids[0] == tokens[position]
            assert logprobs[0] == told_logprob(tokens[position : position + 1])[0]
        assert covered == trained

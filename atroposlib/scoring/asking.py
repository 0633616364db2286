"""Asks the teachers of a job about a row, and makes the group that is stored of what they answer.

Axes: G sequences of a row, T tokens of a sequence.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import PLAIN_NAME
from atroposlib.envs.frames import NOT_PROBABILITIES
from atroposlib.envs.teacher_answers import OVERLENGTH, SILENT, reason_of
from atroposlib.envs.teacher_context import ContextRenderer, context_of
from atroposlib.envs.teacher_reading import Part, plain_part
from atroposlib.envs.teacher_routing import Assignment, assigned
from atroposlib.errors import ConfigError, TeacherError
from atroposlib.scoring.chat import RowError
from atroposlib.scoring.counts import Counts, TeacherCounts
from atroposlib.scoring.rows import Row
from atroposlib.teacher.protocol import Scorer
from atroposlib.teacher.targets import Positions, kept_positions, to_targets
from atroposlib.types import ABSENT_ID, Group, Targets, TeacherScores, TeacherTargets
from atroposlib.wire.targets import heavy_rows, without_rows

OUTAGES = ("teacher.unreachable", "teacher.no_route", "teacher.changed")
"""Failures that are the teacher's whatever the row is: the job ends, and goes on when it is started again."""

NO_TEACHER = "no_teacher"
NOTHING_SAID = "nothing_said"
UNTRAINED = "untrained"
TOO_LONG = "too_long"

Answer = TeacherScores | TeacherError | str
"""What became of a sequence: its scores at the student's positions, the teacher's error, or why not asked."""


@dataclass(frozen=True, slots=True)
class JobTeacher:
    """One teacher of a job.

    Attributes:
        config: Its settings.
        scorer: Who scores for it.
        renderer: Writes what only this teacher sees; None without the student's tokenizer.
        longest: Most tokens of a sequence that its servers take; None where they do not say.
        fingerprint: Of its tokenizer, empty where that is not known.
    """

    config: TeacherConfig
    scorer: Scorer
    renderer: ContextRenderer | None
    longest: int | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Errand:
    """What one teacher is asked about a row: a part for each of its G sequences."""

    teacher: Assignment
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Answers:
    """What was said of a row, in the order of ``errands``: one answer for each of the G sequences."""

    row: Row
    errands: list[Errand]
    answers: list[list[Answer]]

    def failure(self) -> TeacherError | None:
        """The teachers' error when one failed and nobody scored anything."""
        said = [answer for answers in self.answers for answer in answers]
        if any(isinstance(answer, TeacherScores) for answer in said):
            return None
        return next((answer for answer in said if isinstance(answer, TeacherError)), None)


class Panel:
    """All teachers of a job.

    Args:
        teachers: By name.
        top_k: Of teachers that set none themselves.
        positions: Positions that are kept.
        max_token_length: Longest sequence that is scored, in tokens; None for no limit.
    """

    def __init__(
        self,
        teachers: Mapping[str, JobTeacher],
        *,
        top_k: int,
        positions: Positions,
        max_token_length: int | None,
    ) -> None:
        self._teachers = teachers
        self._configs = {name: teacher.config for name, teacher in teachers.items()}
        self._top_k = top_k
        self._positions = positions
        self._max_token_length = max_token_length

    def errands(self, row: Row) -> list[Errand]:
        """Who is asked what about a row.

        Raises:
            RowError: Its overrides name what does not exist.
        """
        overrides = row.group.rest.get("group_overrides") or {}
        try:
            chosen = assigned(self._configs, overrides, top_k=self._top_k, env_names=())
            return [Errand(one, self._parts(row, self._teachers[one.name])) for one in chosen]
        except ConfigError as error:
            raise RowError("overrides", str(error)) from error

    def _parts(self, row: Row, teacher: JobTeacher) -> list[Part]:
        parts: list[Part] = []
        for index, (tokens, mask) in enumerate(zip(row.group.tokens, row.group.masks, strict=True)):
            if self._max_token_length is not None and len(tokens) > self._max_token_length:
                parts.append(Part(kept_positions(mask, self._positions), None, TOO_LONG))
                continue
            context = context_of(teacher.config, row.group.rest, index)
            if not context:
                parts.append(plain_part(tokens.tolist(), mask.tolist(), self._positions))
            elif teacher.renderer is None:
                raise RowError("overrides", "what only a teacher sees needs --tokenizer_name")
            else:
                messages = row.messages[index] if row.messages else []
                listed = tokens.tolist(), mask.tolist()
                parts.append(teacher.renderer.part(*listed, self._positions, messages, context))
        return parts

    async def ask(self, row: Row, errands: Sequence[Errand]) -> Answers:
        """Ask every teacher about every sequence of a row at once.

        Raises:
            ExceptionGroup: Of the TeacherError of an outage.
        """
        async with asyncio.TaskGroup() as tasks:
            asked = [
                [tasks.create_task(self._ask_one(errand.teacher, part)) for part in errand.parts]
                for errand in errands
            ]
        return Answers(row, list(errands), [[task.result() for task in made] for made in asked])

    async def _ask_one(self, assignment: Assignment, part: Part) -> Answer:
        teacher = self._teachers[assignment.name]
        if part.reading is None:
            return part.masked or UNTRAINED
        reading = part.reading.cut(teacher.longest)
        if reading.end <= reading.first:
            return OVERLENGTH
        try:
            scores = await teacher.scorer.score(reading.ids, assignment.top_k, reading.start)
        except TeacherError as error:
            if error.servers_at_fault or error.code in OUTAGES:
                raise
            return error
        return replace(scores, start=scores.start - reading.shift)

    def build(self, answers: Answers, counts: Counts) -> Group | None:
        """The group of a row, counted; None when nobody scored any position of it."""
        group = answers.row.group
        counts.rows += 1
        counts.sequences += len(group.tokens)
        counts.tokens += sum(map(len, group.tokens))
        counts.untold_replies.update(answers.row.untold)
        reasons: Counter[str] = Counter()
        entries: list[TeacherTargets] = []
        for errand, said in zip(answers.errands, answers.answers, strict=True):
            scores = [answer if isinstance(answer, TeacherScores) else None for answer in said]
            targets = to_targets(scores, group.masks, self._positions)
            heavy = heavy_rows(targets.ids, targets.logprobs)
            targets = without_rows(targets, heavy)
            longest = self._teachers[errand.teacher.name].longest
            here = _counted(errand.parts, said, targets, int(heavy.sum()), longest)
            counts.teachers.setdefault(errand.teacher.name, TeacherCounts()).add(here)
            reasons += here.masked
            entries.append(self._entry(errand.teacher, said, targets if here.positions else None))
        first = next((entry.targets for entry in entries if entry.targets is not None), None)
        if first is None:
            unasked = NOTHING_SAID if entries else NO_TEACHER
            counts.masked[reasons.most_common(1)[0][0] if reasons else unasked] += 1
            return None
        counts.scored += 1
        named = list(self._teachers) != [PLAIN_NAME]
        return replace(group, targets=first, teachers=entries if named else [])

    def _entry(
        self, assignment: Assignment, said: Sequence[Answer], targets: Targets | None
    ) -> TeacherTargets:
        teacher = self._teachers[assignment.name]
        models = [one.model for one in said if isinstance(one, TeacherScores) and one.model]
        model = models[0] if models else teacher.config.model_name
        return TeacherTargets(assignment.facts(model, teacher.fingerprint), targets=targets)


def _counted(
    parts: Sequence[Part], said: Sequence[Answer], targets: Targets, heavy: int, longest: int | None
) -> TeacherCounts:
    """One teacher's part of one row; ``heavy`` rows of its targets were left out."""
    here = TeacherCounts(positions=int((targets.ids != ABSENT_ID).any(axis=1).sum()))
    here.unscored[NOT_PROBABILITIES] = heavy
    for part, answer in zip(parts, said, strict=True):
        if isinstance(answer, TeacherScores):
            here.scored += 1
            here.unscored[OVERLENGTH] += part.behind(longest)
            continue
        reason = answer if isinstance(answer, str) else reason_of(answer)
        here.masked[reason] += 1
        here.unscored[reason] += int(part.kept.sum())
    wanted = sum(int(part.kept.sum()) for part in parts)
    here.unscored[SILENT] = wanted - here.positions - here.unscored.total()
    here.unscored = +here.unscored
    return here

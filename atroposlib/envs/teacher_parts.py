"""What a teacher reads of each sequence of a group: the student's own ids, or a view in its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from atroposlib.align.views.reasons import NO_VIEW
from atroposlib.config.teacher import TOOLS
from atroposlib.envs.teacher_answers import IMAGES
from atroposlib.envs.teacher_context import MISMATCH, context_of
from atroposlib.envs.teacher_reading import Part, has_images, plain_part
from atroposlib.envs.teacher_views import ViewPart
from atroposlib.envs.telling import one_line
from atroposlib.teacher.targets import Positions
from atroposlib.types import ScoredDataGroup

if TYPE_CHECKING:
    from atroposlib.align.views.viewer import TeacherViewer
    from atroposlib.envs.teacher_distillation_env import TeacherDistillationEnv
    from atroposlib.envs.teacher_set import TeacherSet

logger = logging.getLogger(__name__)

NO_MESSAGES = "cannot be given its context: the groups carry no messages to render it with"
NOT_SHOWN = "is not asked about some sequences, which it cannot be shown"
NOT_THE_PROMPT = "cannot be given its context: the messages, rendered, are not what the student was asked"

Messages = Sequence[Mapping[str, Any]]
T = TypeVar("T")


def plain_parts(env: TeacherDistillationEnv, group: ScoredDataGroup) -> list[Part]:
    """The sequences as the student has them."""
    # Settings that know no such field are Atropos's, which keeps every position.
    positions: Positions = getattr(env.config, "teacher_positions", "all")
    return [
        plain_part(ids, _at(group.get("masks"), index), positions)
        for index, ids in enumerate(group["tokens"])
    ]


def _at(rows: Sequence[T] | None, index: int) -> T | None:
    """What a member of a group says of one sequence; None where the group lacks the member."""
    return rows[index] if rows else None


async def parts_of(
    env: TeacherDistillationEnv, teachers: TeacherSet, name: str, group: ScoredDataGroup
) -> list[Part] | list[ViewPart]:
    """What the teacher reads of each sequence."""
    contexts = [context_of(teachers.configs[name], group, index) for index in range(len(group["tokens"]))]
    parts = plain_parts(env, group)
    unseen = has_images(group.get("images")) and not env.teacher_takes_images
    if teachers.is_other(name):
        if unseen:
            return [ViewPart(part.kept, None, IMAGES) for part in parts]
        return await _viewed(teachers, name, group, parts, contexts)
    if unseen:
        return [Part(part.kept, None, IMAGES) for part in parts]
    return await _with_contexts(env, teachers, name, group, parts, contexts) if any(contexts) else parts


async def _with_contexts(
    env: TeacherDistillationEnv,
    teachers: TeacherSet,
    name: str,
    group: ScoredDataGroup,
    parts: list[Part],
    contexts: list[str],
) -> list[Part]:
    """The sequences behind prompts that only this teacher sees."""
    renderer = await teachers.renderer(name, env.tokenizer)
    positions: Positions = getattr(env.config, "teacher_positions", "all")
    tokens, masks, messages = group["tokens"], group.get("masks"), group.get("messages")

    def rendered() -> list[Part]:
        return [
            renderer.part(tokens[index], _at(masks, index), positions, _at(messages, index) or [], context)
            if context
            else parts[index]
            for index, context in enumerate(contexts)
        ]

    found = await asyncio.to_thread(rendered)
    if any(part.masked == MISMATCH for part in found):
        teachers.tell_once(name, NOT_THE_PROMPT if messages else NO_MESSAGES)
    return found


async def _viewed(
    teachers: TeacherSet, name: str, group: ScoredDataGroup, parts: list[Part], contexts: list[str]
) -> list[ViewPart]:
    """The sequences in the teacher's own tokens."""
    viewer = await teachers.tokenizers.viewer(name)
    tools = teachers.configs[name].chat_template_kwargs.get(TOOLS)
    tokens, messages = group["tokens"], group.get("messages")

    def viewed() -> list[tuple[ViewPart, str]]:
        return [
            _view(viewer, tokens[index], part, _at(messages, index), tools, contexts[index])
            for index, part in enumerate(parts)
        ]

    found = await asyncio.to_thread(viewed)
    if problem := next((problem for _, problem in found if problem), ""):
        teachers.tell_once(name, NOT_SHOWN, problem)
    return [part for part, _ in found]


def _view(
    viewer: TeacherViewer,
    ids: Sequence[int],
    part: Part,
    messages: Messages | None,
    tools: Sequence[Any] | None,
    context: str,
) -> tuple[ViewPart, str]:
    """A sequence in the teacher's own tokens, and why the teacher cannot be shown it, if it cannot."""
    if part.reading is None:
        return ViewPart(part.kept, None), ""
    try:
        view = viewer.view(ids, part.kept, messages=messages or None, tools=tools, context=context)
    except Exception as error:
        # A chat template is anybody's code: whatever it raises costs this sequence, and not the run.
        logger.debug("a sequence cannot be shown to a teacher", exc_info=error)
        return ViewPart(part.kept, None, NO_VIEW), one_line(error)
    return ViewPart(part.kept, view), view.problem

"""The teachers of a job: opened, compared with the student, and recognised as those that it began with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from atroposlib.config.scoring import ScoreSettings
from atroposlib.config.teacher import TeacherConfig, TeacherLimits
from atroposlib.envs.server_handling.addresses import server_configs
from atroposlib.envs.teacher_context import ContextRenderer, template_of
from atroposlib.envs.teacher_loading import tokenizer_name
from atroposlib.envs.teacher_reading import longest_of
from atroposlib.envs.tokenizer import load_tokenizer
from atroposlib.errors import ConfigError, TeacherError, UsageError
from atroposlib.scoring.asking import JobTeacher
from atroposlib.teacher import canary
from atroposlib.teacher.cache import ScoreCache
from atroposlib.teacher.protocol import Scorer
from atroposlib.teacher.teacher import Teacher
from atroposlib.teacher.tokenizers import compare, fingerprint
from atroposlib.wire.shards import create_json

SONGS = "canary"
"""Directory in the job's with what each teacher made of the canary when the job began."""


def load_student(name: str | None) -> Any:
    """The student's tokenizer, None without a name.

    Raises:
        UsageError: usage.model when it cannot be loaded, or does not tell the characters of its tokens.
    """
    if name is None:
        return None
    tokenizer = load_tokenizer(name, "tokenizer_name")
    if not tokenizer.is_fast:
        raise UsageError(
            "the tokenizer does not tell which characters its tokens stand for",
            code="usage.model",
            where="tokenizer_name",
            got=name,
            expected="a fast tokenizer (tokenizer.json)",
        )
    return tokenizer


def check_tokenizers(configs: Mapping[str, TeacherConfig], student: Any) -> dict[str, Any]:
    """The tokenizer of each teacher.

    Raises:
        ConfigError: One cannot be loaded, or is not the student's.
    """
    found: dict[str, Any] = {}
    for name, config in configs.items():
        for wanted in dict.fromkeys(map(tokenizer_name, config.servers())):
            where = f"tokenizer_name of teacher {name}"
            same = wanted == student.name_or_path
            found[name] = student if same else load_tokenizer(wanted, where)
            match = compare(student, found[name])
            if match.verdict != "same":
                raise ConfigError(
                    "only teachers with the student's tokenizer score a file, and the vocabularies differ",
                    where=where,
                    got=f"{wanted}: {match.reason}",
                    expected=f"the vocabulary of {student.name_or_path}",
                    fix="take such a teacher, or score in an environment, which aligns other tokenizers",
                )
    return found


@asynccontextmanager
async def open_teachers(
    settings: ScoreSettings, configs: Mapping[str, TeacherConfig], student: Any, tokenizers: Mapping[str, Any]
) -> AsyncIterator[dict[str, JobTeacher]]:
    """The teachers of a job, each connected; closed at the end of the block.

    Args:
        settings: The job's.
        configs: The teachers' by name.
        student: The student's tokenizer, or None.
        tokenizers: The teachers'; empty without the student's.

    Raises:
        TeacherError: One cannot be used.
    """
    size, path = settings.teacher_cache_mb << 20, settings.teacher_cache_path
    limits = TeacherLimits(settings.teacher_patience, settings.teacher_tokens_in_flight)
    known = "" if student is None else fingerprint(student)
    async with AsyncExitStack() as stack:
        cache = ScoreCache(size, path) if size or path else None
        if cache is not None:
            stack.push_async_callback(cache.close)
        opened: dict[str, JobTeacher] = {}
        for name, config in configs.items():
            teacher = await stack.enter_async_context(
                Teacher(
                    name,
                    server_configs(config.servers(), teacher=True),
                    limits,
                    cache=cache,
                    tokenizer=known,
                    dtype=settings.logprob_dtype,
                )
            )
            told = await teacher.connect(
                max(settings.teacher_top_k if config.top_k is None else config.top_k, 0)
            )
            opened[name] = JobTeacher(
                config,
                teacher,
                _renderer(name, config, student, tokenizers.get(name)),
                longest_of(told),
                known,
            )
        yield opened


def _renderer(name: str, config: TeacherConfig, student: Any, tokenizer: Any) -> ContextRenderer | None:
    if student is None:
        return None
    template = template_of(name, config, tokenizer)
    return ContextRenderer(student, tokenizer, template, config.chat_template_kwargs)


async def recognise(name: str, teacher: Scorer, directory: Path) -> None:
    """Refuse a teacher that scores the canary otherwise than the one that its job began with.

    Raises:
        TeacherError: teacher.changed when it does, or why it cannot be asked.
    """
    question = canary.QUESTION
    scores = await teacher.score(question.ids.tolist(), question.k, question.start)
    logprobs = canary.logprobs(scores)
    file = directory / SONGS / f"{name}.json"
    if await asyncio.to_thread(create_json, file, logprobs.tolist()):
        return
    first = np.array(json.loads(file.read_text(encoding="utf-8")), logprobs.dtype)
    distance = canary.difference(first, logprobs)
    if not canary.same(first, logprobs):
        raise TeacherError(
            "the teacher holds another model than when the job began: it scores the canary differently",
            code="teacher.changed",
            where=f"teacher {name}",
            got=f"{distance:.3g} nats apart in the mean",
            expected=f"<= {canary.TOLERANCE}",
            fix="serve that model, or begin another output",
        )

"""Entry point of ``atropos score``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from atroposlib.config.interrupts import sigterm_as_interrupt
from atroposlib.config.scoring import ScoreSettings
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.teachers import all_teachers, place_of
from atroposlib.errors import EXIT_OK, UsageError
from atroposlib.scoring.asking import Panel
from atroposlib.scoring.chat import Chat
from atroposlib.scoring.plan import Plan, open_plan
from atroposlib.scoring.progress import reporter
from atroposlib.scoring.source import Source, open_source
from atroposlib.scoring.summary import summarise, told
from atroposlib.scoring.teachers import check_tokenizers, load_student, open_teachers, recognise
from atroposlib.scoring.worker import Job, Worker
from atroposlib.teacher.tokenizers import fingerprint
from atroposlib.wire.shards import finished_shards, read_job

logger = logging.getLogger(__name__)

AHEAD = 2
"""Tokens that are asked for or wait to be written, for each that the servers may work on at once."""


def run(settings: ScoreSettings) -> int:
    """Score the input, or what is left of it, and return the exit code.

    Raises:
        UsageError: The input, the output, a tokenizer or a teacher's settings cannot be used.
        TeacherUnreachable: A teacher is away; what is finished stays.
        TeacherError: A teacher is not what it was, or fails on row after row.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    configs = all_teachers([settings.teacher] if settings.teacher else [], settings.teachers)
    source = open_source(settings.input)
    student = load_student(settings.tokenizer_name)
    if student is None:
        _require_no_context(configs)
    tokenizers = {} if student is None else check_tokenizers(configs, student)
    asked = what_is_asked(settings, configs, "" if student is None else fingerprint(student))
    make_plan = partial(open_plan, settings.output, source, settings.input, settings.rows_per_shard, asked)
    if (job := read_job(settings.output)) and len(finished_shards(settings.output)) == job["shards"]:
        logger.info("%s", told(summarise(settings.output, make_plan())))
        return EXIT_OK
    with sigterm_as_interrupt():
        asyncio.run(_work(settings, configs, student, tokenizers, source, make_plan))
    return EXIT_OK


def _require_no_context(configs: Mapping[str, TeacherConfig]) -> None:
    for name, config in configs.items():
        if config.system_prompt:
            raise UsageError(
                "what only a teacher sees is rendered beside the student's prompt",
                code="usage.missing_value",
                where=f"{place_of(name)}.system_prompt",
                fix="give --tokenizer_name",
            )


def what_is_asked(
    settings: ScoreSettings, configs: Mapping[str, TeacherConfig], tokenizer: str
) -> dict[str, Any]:
    """All that decides what the shards hold: whoever goes on with a job must ask the same."""
    members = (
        "model_name",
        "top_k",
        "weight",
        "route",
        "system_prompt",
        "chat_template",
        "chat_template_kwargs",
    )
    teachers = {name: {key: getattr(one, key) for key in members} for name, one in configs.items()}
    for name, one in configs.items():
        teachers[name]["model_name"] = one.servers()[0].model_name
    return {
        "tokenizer": tokenizer,
        "teacher_top_k": settings.teacher_top_k,
        "teacher_positions": settings.teacher_positions,
        "max_token_length": settings.max_token_length,
        "logprob_dtype": settings.logprob_dtype,
        "teachers": teachers,
    }


async def _work(
    settings: ScoreSettings,
    configs: Mapping[str, TeacherConfig],
    student: Any,
    tokenizers: Mapping[str, Any],
    source: Source,
    make_plan: Callable[[], Plan],
) -> None:
    """Connect the teachers, then work until every row has its shard."""
    servers = max(len(config.servers()) for config in configs.values())
    async with open_teachers(settings, configs, student, tokenizers) as teachers:
        # Teachers that cannot be used begin no job, which would bind the directory to their settings.
        plan = await asyncio.to_thread(make_plan)
        for name, teacher in teachers.items():
            await recognise(name, teacher.scorer, settings.output)
        job = Job(
            directory=settings.output,
            plan=plan,
            source=source,
            panel=Panel(
                teachers,
                top_k=settings.teacher_top_k,
                positions=settings.teacher_positions,
                max_token_length=settings.max_token_length,
            ),
            chat=None if student is None else Chat(student),
            dtype=settings.logprob_dtype,
            tokens_ahead=AHEAD * settings.teacher_tokens_in_flight * servers,
            stop_after_failures=settings.stop_after_failures,
        )
        try:
            with reporter(plan.extent.rows) as progress:
                await Worker(job, progress).run()
        finally:
            logger.info("%s", told(summarise(settings.output, plan)))

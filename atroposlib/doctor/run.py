"""`atropos doctor`: examines all servers at the same time, then times the teachers one after another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import aiohttp
from rich.console import Console

from atroposlib.config.server import APIServerConfig
from atroposlib.doctor.check import Check, exit_code, failed
from atroposlib.doctor.examine import examine_student, examine_teacher
from atroposlib.doctor.loading import Tokenizers, load_tokenizers, tokenizer_name
from atroposlib.doctor.patients import Patients
from atroposlib.doctor.speed import SPEED, Meter, check_speed
from atroposlib.doctor.subject import Scoring, Subject, peer_for
from atroposlib.doctor.table import as_json, print_table
from atroposlib.doctor.tokenizers import TOKENIZER
from atroposlib.envs.server_handling.student import STUDENT
from atroposlib.errors import AtroposError
from atroposlib.teacher import decoding
from atroposlib.teacher.transport import TEACHER, open_session

STUDENT_NAME = "student"


def run(patients: Patients, *, json: bool) -> int:
    """Examine and print; the exit code is 0, 1 for a failed check, 3 for a server out of reach."""
    console = Console(stderr=True)
    # A status line is for people who wait; a log would only repeat it.
    waiting = console.status("asking the servers") if console.is_terminal else nullcontext()
    with waiting:
        checks = asyncio.run(diagnose(patients))
    if json:
        sys.stdout.write(as_json(checks) + "\n")
    else:
        print_table(checks)
    return exit_code(checks)


async def diagnose(patients: Patients) -> list[Check]:
    """All checks, server by server: the teachers', then the students'."""
    # Transformers takes seconds to import, and knows no event loop.
    loaded = await asyncio.to_thread(_load_tokenizers, patients)
    decoding.retain()
    try:
        async with open_session() as session:
            return await _diagnose(patients, session, loaded)
    finally:
        decoding.release()


def _load_tokenizers(patients: Patients) -> Tokenizers:
    """The student's, and those that it is compared with."""
    student = patients.env.tokenizer_name
    if student is None:
        return Tokenizers()
    servers = [server for config in patients.teachers.values() for server in config.servers()]
    return load_tokenizers(student, [name for name in map(tokenizer_name, servers) if name])


async def _diagnose(patients: Patients, session: aiohttp.ClientSession, loaded: Tokenizers) -> list[Check]:
    meter = Meter(session)
    longest = patients.env.max_token_length
    async with asyncio.TaskGroup() as group:
        teachers = [
            group.create_task(examine_teacher(one, longest)) for one in _teachers(patients, session, loaded)
        ]
        students = [group.create_task(examine_student(one)) for one in _students(patients, session, loaded)]
    checks = []
    for teacher in teachers:
        found, scoring = teacher.result()
        checks += found
        if scoring is not None:
            checks.append(await _timed(scoring, meter))
    if trouble := loaded.troubles.get(patients.env.tokenizer_name or ""):
        checks.append(Check(TOKENIZER, STUDENT_NAME, "fail", trouble, "correct env.tokenizer_name"))
    return checks + [check for student in students for check in student.result()]


async def _timed(scoring: Scoring, meter: Meter) -> Check:
    try:
        return await check_speed(scoring, meter)
    except AtroposError as error:
        return failed(SPEED, scoring.subject.name, error)


def _teachers(patients: Patients, session: aiohttp.ClientSession, loaded: Tokenizers) -> list[Subject]:
    student = loaded.found.get(patients.env.tokenizer_name or "")
    subjects = []
    for name, config in patients.teachers.items():
        top_k = patients.env.teacher_top_k if config.top_k is None else config.top_k
        for label, server in _labelled(name, config.servers()):
            own = tokenizer_name(server)
            subject = Subject(
                name=label,
                config=server,
                peer=peer_for(server, TEACHER),
                top_k=max(top_k, 0),
                session=session,
                student=student,
                tokenizer=loaded.found.get(own),
                trouble=loaded.troubles.get(own, ""),
                align=patients.env.alignment == "auto",
            )
            subjects.append(subject)
    return subjects


def _students(patients: Patients, session: aiohttp.ClientSession, loaded: Tokenizers) -> list[Subject]:
    student = loaded.found.get(patients.env.tokenizer_name or "")
    return [
        Subject(label, server, peer_for(server, STUDENT), 0, session, student, student)
        for label, server in _labelled(STUDENT_NAME, patients.students)
    ]


def _labelled(name: str, servers: Sequence[APIServerConfig]) -> list[tuple[str, APIServerConfig]]:
    """Each server with the name that findings give it: numbered where there are several."""
    if len(servers) == 1:
        return [(name, servers[0])]
    return [(f"{name}[{index}]", server) for index, server in enumerate(servers)]

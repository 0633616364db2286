"""Makes the plan of a run: environment, models, directory, ports and the settings of every part."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import requests

from atroposlib.config.demo import DemoSettings
from atroposlib.demo.assets import PACKAGED_MODELS, Say
from atroposlib.demo.configs import write_configs
from atroposlib.demo.environment import environment_file, held_out_prompts
from atroposlib.demo.files import RunFiles, new_run
from atroposlib.demo.pairing import has_chat_template, same_tokenizer
from atroposlib.demo.plan import TEACHER, Models, Plan, Ports
from atroposlib.demo.processes import free_ports
from atroposlib.demo.resolve import model_directory
from atroposlib.demo.student import prune
from atroposlib.demo.vllm_backend import find_vllm, vllm_python
from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.teacher.address import server_root

TEACHER_TIMEOUT_S = 10.0


class Server(TypedDict):
    """The members of :class:`Models` that say who serves the teacher."""

    teacher_url: str | None
    teacher_served_as: str


def prepare(settings: DemoSettings, say: Say) -> Plan:
    """Settle everything that can be wrong before a process is started.

    Args:
        settings: What the user wants.
        say: Is told what takes long.

    Raises:
        UsageError: A model, file or directory that cannot be used.
        TeacherUnreachable: The teacher is a URL at which nobody answers.
    """
    vllm = find_vllm(vllm_python()) if settings.backend == "vllm" else None
    environment = environment_file(settings.environment)
    prompts = held_out_prompts(environment, settings.eval_prompts)
    url = settings.teacher if settings.teacher.startswith(("http://", "https://")) else None
    served_as, weights = serving(url) if url else (TEACHER, settings.teacher)
    # The evaluator compares with the teacher's own weights, also when another process serves them.
    teacher = model_directory(weights, f"weights served at {url}:" if url else "--teacher", say)
    named = student_of(settings)
    student = model_directory(named, "--student", say) if named else None
    server: Server = {"teacher_url": server_root(url) if url else None, "teacher_served_as": served_as}
    given = _given_student(settings, teacher, student, server) if student else None
    files = new_run(settings.out)
    plan = Plan(
        settings=settings,
        files=files,
        models=given or _pruned_student(settings, files, teacher, server),
        ports=Ports(*free_ports(3)),
        environment_file=environment,
        prompts=prompts,
        vllm=vllm,
    )
    write_configs(plan)
    return plan


def serving(url: str) -> tuple[str, str]:
    """Model id of a running server, and the directory or hub id of its weights.

    Raises:
        TeacherUnreachable: Nobody answers.
        TeacherError: What answers is no model server.
    """
    where = f"{server_root(url)}/v1/models"
    session = requests.Session()
    # Like every other client of the run: a proxy of the environment is not asked for servers at hand.
    session.trust_env = False
    try:
        answer = session.get(where, timeout=TEACHER_TIMEOUT_S)
    except requests.RequestException as error:
        raise TeacherUnreachable(
            "the teacher cannot be reached",
            where=url,
            got=type(error).__name__,
            fix="start it, or check --teacher",
        ) from error
    try:
        card = answer.json()["data"][0]
        return str(card["id"]), str(card.get("root") or card["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise TeacherError(
            "the teacher's list of models cannot be read", where=where, got=f"HTTP {answer.status_code}"
        ) from error


def student_of(settings: DemoSettings) -> str | None:
    """The student that the settings name, or that is a packaged teacher's by default; None to prune one."""
    if settings.student is not None or settings.keep_layers is not None:
        return settings.student
    packaged = PACKAGED_MODELS.get(settings.teacher)
    return packaged.student if packaged else None


def _given_student(settings: DemoSettings, teacher: Path, student: Path, server: Server) -> Models:
    same = same_tokenizer(student, teacher)
    title = _title(student_of(settings) or "", student)
    return Models(
        teacher=teacher,
        student=student,
        teacher_title=_title(settings.teacher, teacher),
        student_title=title,
        student_origin=f"{title}, as given" + ("" if same else ", with another tokenizer than its teacher"),
        teacher_tokenizer=teacher,
        same_tokenizer=same,
        teacher_is_base=not has_chat_template(teacher),
        **server,
    )


def _pruned_student(settings: DemoSettings, files: RunFiles, teacher: Path, server: Server) -> Models:
    pruned = prune(teacher, files.student, settings.keep_layers)
    layers = f"{len(pruned.kept_layers)} of {pruned.teacher_layers} layers"
    title = _title(settings.teacher, teacher)
    return Models(
        teacher=teacher,
        student=pruned.directory,
        teacher_title=title,
        student_title=f"{title}, {layers}",
        student_origin=f"a pruned copy of the teacher ({layers}), so what is shown is how distillation "
        "recovers what pruning broke",
        teacher_tokenizer=pruned.directory,
        teacher_is_base=not has_chat_template(teacher),
        **server,
    )


def _title(name: str, directory: Path) -> str:
    return PACKAGED_MODELS[name].title if name in PACKAGED_MODELS else directory.name

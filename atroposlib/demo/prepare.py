"""Makes the plan of a run: environment, models, directory, ports and the settings of every part."""

from __future__ import annotations

from pathlib import Path

import requests

from atroposlib.config.demo import DemoSettings
from atroposlib.demo.assets import PACKAGED_MODELS, Say
from atroposlib.demo.configs import write_configs
from atroposlib.demo.environment import environment_file, held_out_prompts
from atroposlib.demo.files import RunFiles, new_run
from atroposlib.demo.plan import TEACHER, Models, Plan, Ports
from atroposlib.demo.processes import free_ports
from atroposlib.demo.resolve import model_directory
from atroposlib.demo.student import prune
from atroposlib.demo.vllm_backend import find_vllm, vllm_python
from atroposlib.errors import TeacherError, TeacherUnreachable
from atroposlib.teacher.address import server_root

TEACHER_TIMEOUT_S = 10.0


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
    student = model_directory(settings.student, "--student", say) if settings.student else None
    files = new_run(settings.out)
    plan = Plan(
        settings=settings,
        files=files,
        models=_models(settings, files, teacher, student, url, served_as),
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


def _models(
    settings: DemoSettings,
    files: RunFiles,
    teacher: Path,
    student: Path | None,
    url: str | None,
    served_as: str,
) -> Models:
    title = PACKAGED_MODELS[settings.teacher].title if settings.teacher in PACKAGED_MODELS else teacher.name
    server = (server_root(url) if url else None, served_as)
    if student is not None:
        return Models(teacher, student, title, student.name, f"{student.name}, as given", teacher, *server)
    pruned = prune(teacher, files.student, settings.keep_layers)
    kept, layers = len(pruned.kept_layers), pruned.teacher_layers
    name = f"{title}, {kept} of {layers} layers"
    origin = (
        f"a pruned copy of the teacher ({kept} of {layers} layers), so what is shown is how distillation "
        "recovers what pruning broke"
    )
    return Models(teacher, pruned.directory, title, name, origin, pruned.directory, *server)

"""The settings files that the parts of a demo are started with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from atroposlib.config.demo import EvaluatorSettings
from atroposlib.config.teacher import OWN_TEMPLATE
from atroposlib.config.trainer import TrainerSettings
from atroposlib.demo.plan import ENVIRONMENT, EVALUATOR, STUDENT, TEACHER, TRAINER, Plan

NO_END = 10**9
"""Steps of an environment that the demo ends. By the trainer's own number of steps it would end itself while
the last steps run, and a batch that the trainer leaves out would never be made up for."""


def environment_config(plan: Plan) -> dict[str, Any]:
    """The YAML document that the environment is served with."""
    settings = plan.settings
    return {
        "env": {
            "tokenizer_name": str(plan.models.student),
            "rollout_server_url": plan.api_url,
            "group_size": settings.group_size,
            "max_batches_offpolicy": settings.batches_ahead,
            "max_num_workers": max(1, settings.batch_size // settings.group_size),
            "max_token_length": settings.max_token_length,
            "max_completion_tokens": settings.max_completion_tokens,
            "teacher_enabled": True,
            "teacher_top_k": settings.teacher_top_k,
            "total_steps": NO_END,
            "steps_per_eval": -1,
            "use_wandb": False,
            "seed": settings.seed,
            "journal_path": str(plan.files.journal(ENVIRONMENT)),
        },
        "openai": [_server(plan.student_url, STUDENT, plan.models.student)],
        **_teacher(plan),
    }


def _teacher(plan: Plan) -> dict[str, Any]:
    models = plan.models
    server = _server(plan.teacher_url, models.teacher_served_as, models.teacher_tokenizer)
    if models.same_tokenizer:
        return {"teacher": server}
    # A base model has learnt no template, so it reads the prompt and the completion as they are.
    template = None if models.teacher_is_base else OWN_TEMPLATE
    return {"teachers": {TEACHER: {**server, "chat_template": template}}}


def trainer_settings(plan: Plan) -> TrainerSettings:
    """The settings of the trainer: of the teacher only its tokenizer, and that only where it is another."""
    settings = plan.settings
    return TrainerSettings(
        model=str(plan.models.student),
        output_dir=str(plan.files.checkpoints),
        api_url=plan.api_url,
        total_steps=settings.steps,
        batch_size=settings.batch_size,
        micro_batch_size=settings.batch_size,
        max_token_len=settings.max_token_length,
        learning_rate=plan.learning_rate,
        warmup_steps=settings.warmup_steps,
        # The last steps are noisy at the peak rate, and the run is judged by where it ends.
        schedule="linear",
        device=settings.device,
        threads=plan.threads,
        seed=settings.seed,
        student_url=plan.student_url,
        refresh_every=1,
        # The evaluator may still be reading the one before the last.
        keep_checkpoints=3,
        journal_path=str(plan.files.journal(TRAINER)),
        **_across(plan),
    )


def _across(plan: Plan) -> dict[str, Any]:
    """What a trainer must know of a teacher with another tokenizer: how that one writes text."""
    if plan.models.same_tokenizer:
        return {}
    return {
        "loss": {"name": "auto"},
        "teachers": {TEACHER: {"tokenizer": str(plan.models.teacher_tokenizer)}},
    }


def evaluator_settings(plan: Plan) -> EvaluatorSettings:
    """The settings of the evaluator."""
    settings = plan.settings
    return EvaluatorSettings(
        teacher=plan.models.teacher,
        student=plan.models.student,
        same_tokenizer=plan.models.same_tokenizer,
        prompts=plan.prompts,
        sample_prompts=min(settings.sample_prompts, len(plan.prompts)),
        max_completion_tokens=settings.max_completion_tokens,
        steps=settings.steps,
        every=settings.eval_every,
        checkpoints=plan.files.journal(TRAINER),
        journal_path=plan.files.journal(EVALUATOR),
        seed=settings.seed,
        device=settings.device,
        threads=plan.threads,
    )


def write_configs(plan: Plan) -> None:
    """Write the file of each part, and one with all of them for the reader."""
    environment = environment_config(plan)
    trainer = trainer_settings(plan).model_dump(mode="json", exclude_unset=True)
    evaluator = evaluator_settings(plan).model_dump(mode="json")
    _write_yaml(plan.files.part_config("environment.yaml"), environment)
    _write_yaml(plan.files.part_config("trainer.yaml"), trainer)
    plan.files.part_config("evaluator.json").write_text(json.dumps(evaluator), encoding="utf-8")
    everything = {
        "demo": plan.settings.model_dump(mode="json"),
        "environment_file": str(plan.environment_file),
        "environment": environment,
        "trainer": trainer,
        "evaluator": evaluator,
    }
    _write_yaml(plan.files.config, everything)


def _server(url: str, model: str, tokenizer: Path) -> dict[str, Any]:
    return {
        "base_url": f"{url}/v1",
        "model_name": model,
        "server_type": "vllm",
        "tokenizer_name": str(tokenizer),
    }


def _write_yaml(file: Path, document: dict[str, Any]) -> None:
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)
    file.write_text(text, encoding="utf-8")

"""One loss or several out of what the user wrote: by name alone, as a mapping, or as a list of either."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from atroposlib.config.losses.across import ChunkLikelihood, QuotientDistillation
from atroposlib.config.losses.base import LossSettings, LossTold, TeacherLossSettings
from atroposlib.config.losses.compatible import (
    CrossTokenizerDistillation,
    Distillation,
    GeneralizedKl,
    TeacherRenormalizedKl,
    TruncatedKl,
)
from atroposlib.config.losses.policy import DPO, NLL, ClippedPG, KlEstimator, PolicyGradient
from atroposlib.config.losses.same_tokenizer import TopKDistillation
from atroposlib.config.suggest import did_you_mean
from atroposlib.errors import ConfigError


class Auto(TeacherLossSettings):
    """For each teacher the loss that fits its tokenizer."""

    told: ClassVar[LossTold] = LossTold(
        formula="topk_distillation for teachers with the student's tokenizer,\n"
        "quotient_distillation for the others, both as they are by default",
        needs="targets of any teacher",
        bias="as those two",
        use="the default",
    )

    name: Literal["auto"] = "auto"


LOSSES: dict[str, type[LossSettings]] = {
    settings.model_fields["name"].default: settings
    for settings in (
        Auto,
        TopKDistillation,
        QuotientDistillation,
        ChunkLikelihood,
        PolicyGradient,
        KlEstimator,
        ClippedPG,
        NLL,
        DPO,
        TruncatedKl,
        GeneralizedKl,
        TeacherRenormalizedKl,
        Distillation,
        CrossTokenizerDistillation,
    )
}
"""Settings of every loss that `atropos train` takes, by name."""

Loss = Annotated[
    Auto
    | TopKDistillation
    | QuotientDistillation
    | ChunkLikelihood
    | PolicyGradient
    | KlEstimator
    | ClippedPG
    | NLL
    | DPO
    | TruncatedKl
    | GeneralizedKl
    | TeacherRenormalizedKl
    | Distillation
    | CrossTokenizerDistillation,
    Field(discriminator="name"),
]

LIBRARY_ONLY = {
    "mse_value": "it trains a value model, which this trainer does not have",
    "draft_cross_entropy": "it trains a draft model, which this trainer does not have",
    "preference": "it reads rewards of a reward model; dpo trains on pairs of a group",
}
"""Losses of atroposlib.losses that no group of the API can feed, and why."""

FROM_TEACHERS = {
    "projection_matrix_paths": "teachers.NAME.projection",
    "teacher_vocab_sizes": "teachers.NAME.vocab_size",
    "teacher_weights": "teachers.NAME.weight",
    "teacher_gold_loss": "teachers.NAME.gold_loss",
    "teacher_xtoken_loss": "teachers.NAME.xtoken_loss",
    "student_vocab_size": None,
}
"""Keys that NeMo RL's set-up adds to the loss, and where they are said here; None follows from the model."""


def as_losses(value: Any) -> Any:
    """What the user wrote as a list of mappings, with what has no loss of its own refused.

    Raises:
        ConfigError: What is no loss, a name that is none, or a key that `teachers:` says.
    """
    value = _read(value)
    losses = value if isinstance(value, list) else [value]
    if not losses:
        raise ConfigError("there is no loss", fix="leave loss out for auto")
    return [_checked(one) for one in losses]


def _read(value: Any) -> Any:
    """What JSON says, where a command line gives it."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ConfigError("not valid JSON", got=str(error), fix='write {"name": "auto"}') from error


def _checked(value: Any) -> Any:
    value = _read(value)
    if isinstance(value, str):
        value = {"name": value}
    if isinstance(value, LossSettings):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            "not a loss",
            code="usage.bad_value",
            got=value,
            expected="a name, a mapping with a name, or a list",
        )
    name = value.get("name")
    if not isinstance(name, str | None):
        raise ConfigError("the name of a loss is a word", code="usage.bad_value", got=name)
    if name in LIBRARY_ONLY:
        raise ConfigError("this loss is for your own trainer", got=name, fix=LIBRARY_ONLY[name])
    if name not in LOSSES:
        raise ConfigError(
            "no such loss" if "name" in value else "the loss has no name",
            code="usage.bad_value",
            got=name,
            fix=did_you_mean(str(name), LOSSES) or "`atropos losses` lists them",
        )
    for key in value.keys() & FROM_TEACHERS:
        raise ConfigError(
            f"{key} is no setting of a loss",
            fix=f"write it as {place}" if (place := FROM_TEACHERS[key]) else "it follows from the model",
        )
    return dict(value)

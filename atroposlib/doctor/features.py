"""Speculative decoding and LoRA, which are known to corrupt prompt logprobs, where a server tells of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from atroposlib.doctor.check import Check
from atroposlib.doctor.subject import Subject, patiently
from atroposlib.teacher.served import get_json
from atroposlib.teacher.transport import send

SPECULATIVE = "speculative decoding"
LORA = "lora"

_METRIC = re.compile(rb"^(?:# HELP |# TYPE )?vllm:(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Told:
    """What a server says of itself; None where it does not."""

    speculative: bool | None
    lora: bool | None


async def check_features(subject: Subject) -> list[Check]:
    """One check for each of the two. Raises AtroposError where the server fails on the question."""
    told = await _from_metrics(subject)
    if told.speculative is None:
        told = await _from_server_info(subject)
    return [_speculative(subject, told.speculative), _lora(subject, told.lora, await _adapters(subject))]


async def _from_metrics(subject: Subject) -> _Told:
    """vLLM registers the metrics of a feature only where it is on, and none at all without statistics."""
    answer = await patiently(lambda: send(subject.session, subject.quick, "/metrics"))
    names = set(_METRIC.findall(answer.content)) if answer.status == 200 else set()
    if not names:
        return _Told(None, None)
    return _Told(
        speculative=any(name.startswith(b"spec_decode") for name in names),
        lora=any(name.startswith(b"lora_requests") for name in names),
    )


async def _from_server_info(subject: Subject) -> _Told:
    """The whole configuration, which vLLM tells in dev mode only."""
    path = "/server_info?config_format=json"
    answer = await patiently(lambda: send(subject.session, subject.quick, path))
    try:
        settings: Any = orjson.loads(answer.content)["vllm_config"]
        return _Told(settings["speculative_config"] is not None, settings["lora_config"] is not None)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return _Told(None, None)


async def _adapters(subject: Subject) -> list[str]:
    """Names of the served models that are LoRA adapters of another one."""
    listed = await patiently(lambda: get_json(subject.session, subject.quick, "/v1/models"))
    cards = listed.get("data") if isinstance(listed, dict) else None
    return [str(card.get("id")) for card in cards or [] if isinstance(card, dict) and card.get("parent")]


def _speculative(subject: Subject, on: bool | None) -> Check:
    if on is None:
        return Check(SPECULATIVE, subject.name, "skip", "the server does not say")
    if not on:
        return Check(SPECULATIVE, subject.name, "ok", "off")
    return Check(
        SPECULATIVE,
        subject.name,
        "warn",
        "on: it is known to corrupt prompt logprobs of some requests without a sign",
        "start the teacher without --speculative-config",
    )


def _lora(subject: Subject, on: bool | None, adapters: Sequence[str]) -> Check:
    if adapters or on:
        what = f"adapters {', '.join(adapters)}" if adapters else "enabled"
        return Check(
            LORA,
            subject.name,
            "warn",
            f"{what}: it is known to drop an adapter from prompt logprobs, and to end a server that scores",
            "merge the adapter into the weights and start the teacher without --enable-lora",
        )
    if on is None:
        return Check(LORA, subject.name, "skip", "no adapters are listed; whether it is enabled is not said")
    return Check(LORA, subject.name, "ok", "off")

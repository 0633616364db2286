"""Renders one truth as every kind of server would answer it, and as the arrays that must come out."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from atroposlib.teacher.protocol import Question
from atroposlib.types import ABSENT_ID, TeacherScores
from tests.support.vllm_render import render

Truth = NDArray[np.float32]
"""Logprobs float32 [T, V]; row 0 unused."""


def expected(truth: Truth, question: Question) -> TeacherScores:
    """The arrays that a right answer gives, token by token."""
    ids, logprobs = [], []
    for position in range(question.start, len(question.ids)):
        row, standing = truth[position], int(question.ids[position])
        top = [int(one) for one in np.argsort(-row, kind="stable")[: question.k]]
        columns = [standing, *(one for one in top if one != standing)]
        columns = [one if np.isfinite(row[one]) else ABSENT_ID for one in columns]
        columns += [ABSENT_ID] * (question.k + 1 - len(columns))
        ids.append(columns)
        logprobs.append([row[one] if one != ABSENT_ID else -np.inf for one in columns])
    shape = (len(question.ids) - question.start, question.k + 1)
    return TeacherScores(
        np.asarray(ids, dtype=np.int32).reshape(shape),
        np.asarray(logprobs, dtype=np.float32).reshape(shape),
        question.start,
        "truth",
    )


def completions(truth: Truth, question: Question) -> dict[str, Any]:
    """As vLLM's ``/v1/completions``."""
    rows = render(truth, question.ids.tolist(), question.k)
    choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": rows}
    return {"id": "cmpl-0", "object": "text_completion", "model": "truth", "choices": [choice]}


def generate(truth: Truth, question: Question) -> dict[str, Any]:
    """As vLLM's ``/inference/v1/generate`` with ``detokenize: false``."""
    rows = render(truth, question.ids.tolist(), question.k)
    for row in rows[1:]:
        assert row is not None
        for member in row.values():
            member["decoded_token"] = None
    choice = {"index": 0, "token_ids": [1], "finish_reason": "length", "logprobs": None}
    return {"request_id": "r", "model": "truth", "choices": [choice], "prompt_logprobs": rows}


def echo(truth: Truth, question: Question) -> dict[str, Any]:
    """As ``/v1/completions`` with ``echo`` and ``return_tokens_as_token_ids``."""

    def value(position: int, token: int) -> float:
        return max(float(truth[position, token]), -9999.0)

    ids = question.ids.tolist()
    tops: list[dict[str, float] | None] = [None]
    for position, standing in list(enumerate(ids))[1:]:
        top = np.argsort(-truth[position], kind="stable")[: question.k].tolist()
        tops.append({f"token_id:{one}": value(position, one) for one in [standing, *top]})
    logprobs = {
        "text_offset": list(range(len(ids))),
        "tokens": [f"token_id:{one}" for one in ids],
        "token_logprobs": [None, *(value(position, one) for position, one in list(enumerate(ids))[1:])],
        "top_logprobs": tops,
    }
    return {"model": "truth", "choices": [{"index": 0, "text": "x", "logprobs": logprobs}]}


def sglang(truth: Truth, question: Question, form: str = "b64") -> dict[str, Any]:
    """As SGLang's ``/generate``; ``form`` is b64, flat, flat_counting_nulls or nested."""
    positions = range(question.start, len(question.ids))
    ids = question.ids.tolist()
    own = [[float(truth[position, ids[position]]), ids[position], None] for position in positions]
    meta: dict[str, Any] = {
        "id": "r",
        "prompt_tokens": len(ids),
        "input_token_logprobs": [[None, ids[question.start - 1], None], *own],
        "output_token_logprobs": [],
    }
    if question.extra_ids is not None:
        named = np.unique(question.extra_ids[question.extra_ids >= 0]).tolist()
        rows = [[[float(truth[position, one]), one, None] for one in named] for position in positions]
        meta["input_token_ids_logprobs"] = [None, *rows]
    if question.k:
        meta.update(_sglang_top(truth, question, form))
    return {"text": "", "output_ids": [], "meta_info": meta}


def _sglang_top(truth: Truth, question: Question, form: str) -> dict[str, Any]:
    truth = truth[question.start :]
    top = np.argsort(-truth, axis=1, kind="stable")[:, : question.k].astype(np.int32)
    values = np.take_along_axis(truth, top, axis=1)
    if form == "nested":
        rows = [
            [[float(value), int(one), None] for value, one in zip(*row, strict=True)]
            for row in zip(values, top, strict=True)
        ]
        return {"input_top_logprobs": [None, *rows], "output_top_logprobs": []}
    nulls = 1 if form == "flat_counting_nulls" else 0
    fields: dict[str, Any] = {
        "input_top_logprobs_shape": [len(truth) + nulls, question.k],
        "input_top_logprobs_null_prefix": 1,
    }
    if form == "b64":
        return {
            **fields,
            "input_top_logprobs_val_flat_b64": base64.b64encode(values.astype("<f4").tobytes()).decode(),
            "input_top_logprobs_idx_flat_b64": base64.b64encode(top.astype("<i4").tobytes()).decode(),
            "input_top_logprobs_val_flat_b64_dtype": "float32",
            "input_top_logprobs_idx_flat_b64_dtype": "int32",
        }
    return {
        **fields,
        "input_top_logprobs_val_flat": values.ravel().tolist(),
        "input_top_logprobs_idx_flat": top.ravel().tolist(),
    }


def random_truth(generator: np.random.Generator, length: int, vocabulary: int) -> Truth:
    """Normalised logprobs float32 [T, V] of a made-up model, flat and sharp rows among them."""
    scale = generator.choice([0.5, 2.0, 5.0], size=(length, 1))
    logits = generator.normal(size=(length, vocabulary)) * scale
    top = logits.max(axis=1, keepdims=True)
    return np.asarray(
        logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True)), dtype=np.float32
    )


RENDERERS: dict[str, Callable[[Truth, Question], dict[str, Any]]] = {
    "completions": completions,
    "generate": generate,
    "echo": echo,
    "sglang b64": sglang,
    "sglang flat": lambda truth, question: sglang(truth, question, "flat"),
    "sglang flat counting nulls": lambda truth, question: sglang(truth, question, "flat_counting_nulls"),
    "sglang nested": lambda truth, question: sglang(truth, question, "nested"),
}


def body_of(reply: dict[str, Any]) -> bytes:
    """A reply as a server sends it."""
    return orjson.dumps(reply)

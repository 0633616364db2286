"""As much of vLLM 0.32 as our plugin touches, around the made-up model: for what a CPU build cannot show.

A real one is asked in tests/vllm. Here are failures at will, requests that hang, and the V2 model runner.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.support.vllm_render import fake_logprobs

VOCABULARY = 50


class ClientError(Exception):
    """vLLM's base of what the client did wrong."""


class SamplingParams(SimpleNamespace):
    """Keeps what it is given."""


@dataclass
class Flat:
    """vLLM's FlatLogprobs: the first position empty, then the token that stands there and the top-k."""

    start_indices: list[int] = field(default_factory=lambda: [0])
    end_indices: list[int] = field(default_factory=lambda: [0])
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, ids: list[int], logprobs: list[float]) -> None:
        """Append one position."""
        self.start_indices.append(len(self.token_ids))
        self.token_ids += ids
        self.logprobs += logprobs
        self.end_indices.append(len(self.token_ids))


@dataclass
class Engine:
    """An engine client.

    Attributes:
        v2: The model runner scores ids that the caller names.
        hold: Requests wait until it is set.
        failure: Raised by requests of :attr:`fails_at` tokens.
        fails_at: Length of the prompts that fail, 0 for none.
        spoil: Changes the flat logprobs of every request.
        asked: Sampling parameters of every request so far, by order.
        aborted: Lengths of the prompts that were given up.
        running: Requests under way; ``most_running`` the most at once.
        started: Set when a request has begun.
    """

    v2: bool = False
    hold: asyncio.Event | None = None
    failure: Exception = field(default_factory=lambda: RuntimeError("EngineCore encountered an issue"))
    fails_at: int = 0
    spoil: Any = None
    asked: list[SamplingParams] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    model_config: Any = field(
        default_factory=lambda: SimpleNamespace(
            max_model_len=64,
            max_logprobs=20,
            get_vocab_size=lambda: VOCABULARY,
            tokenizer="none",
            tokenizer_revision=None,
        )
    )

    async def generate(self, prompt: Any, sampling: SamplingParams, request_id: str) -> AsyncIterator[Any]:
        """The one, final output of a request."""
        assert request_id.startswith("atropos-")
        named = getattr(sampling, "prompt_logprob_token_ids", None)
        self.asked.append(sampling)
        if named is not None and not self.v2:
            raise ClientError("prompt_logprob_token_ids requires the V2 model runner")
        ids = prompt["prompt_token_ids"]
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.started.set()
        try:
            if len(ids) == self.fails_at:
                raise self.failure
            await (self.hold.wait() if self.hold else asyncio.sleep(0))
            yield self._output(ids, sampling, named)
        except asyncio.CancelledError:
            self.aborted.append(len(ids))
            raise
        finally:
            self.running -= 1

    def _output(self, ids: list[int], sampling: SamplingParams, named: Any) -> Any:
        table = fake_logprobs(ids, VOCABULARY)
        k = getattr(sampling, "prompt_logprobs", None)
        flat = None if k is None else Flat()
        for row, token in zip(table[1:], ids[1:], strict=True):
            if flat is not None and k is not None:
                members = [token, *np.argsort(-row, kind="stable")[:k].tolist()]
                flat.add(members, row[members].tolist())
        if self.spoil is not None and flat is not None:
            self.spoil(flat)
        scored = None
        if named is not None:
            # Row i scores its ids as predictions of the token at prompt_logprob_start + i + 1.
            rows = table[sampling.prompt_logprob_start + 1 :]
            assert len(rows) == len(named)
            scored = np.where(named < 0, -np.inf, np.take_along_axis(rows, named.clip(0), axis=1))
        return SimpleNamespace(prompt_logprobs=flat, prompt_token_id_logprobs=scored)


@contextmanager
def installed() -> Iterator[ModuleType]:
    """Our plugin, imported where this vLLM is installed."""
    modules = {
        "vllm": {"__version__": "0.32.0", "SamplingParams": SamplingParams},
        "vllm.exceptions": {"VLLMClientError": ClientError},
        "vllm.inputs": {"tokens_input": lambda ids: {"type": "token", "prompt_token_ids": ids}},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY="final")},
    }
    for name, members in modules.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(members)
    try:
        yield importlib.import_module("atroposlib.vllm_plugin")
    finally:
        for name in [*modules, *(name for name in sys.modules if name.startswith("atroposlib.vllm_plugin"))]:
            del sys.modules[name]

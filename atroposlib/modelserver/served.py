"""The served model as the routes see it: limits, checks, and prompts turned into finished jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

from atroposlib.modelserver.refusals import Refusal, failure, unknown_model
from atroposlib.modelserver.sampling import new_generator
from atroposlib.modelserver.scheduler import Scheduler
from atroposlib.modelserver.text import TextCodec
from atroposlib.modelserver.work import Job, SamplingOptions, Sequence

INITIAL_VERSION = "default"


@dataclass(slots=True)
class ServedModel:
    """One model behind the routes.

    Attributes:
        name: Name that clients call it by.
        codec: Its tokenizer.
        scheduler: Its worker.
        max_model_len: Longest prompt and completion together, in tokens.
        max_logprobs: Most logprobs at a position, -1 for the whole vocabulary.
        vocab_size: Rows of its head.
        defaults: Sampling values of its generation config, by field name.
        seeds: Source of seeds for requests that carry none.
        version: Weight version, as the trainer named it.
        weights_path: Directory that the weights were loaded from last.
        reload: Loads the weights in a directory, all or nothing; raises ValueError. To be run on the worker.
    """

    name: str
    codec: TextCodec
    scheduler: Scheduler
    max_model_len: int
    max_logprobs: int
    vocab_size: int
    weights_path: str
    reload: Callable[[str], None]
    defaults: dict[str, Any] = field(default_factory=dict)
    seeds: random.Random = field(default_factory=random.Random)
    version: str = INITIAL_VERSION

    def check_name(self, name: str | None) -> None:
        """Refuse a request for another model."""
        if name and name != self.name:
            raise unknown_model(name, self.name)

    def check_prompt(self, ids: Many[int]) -> None:
        """Refuse a prompt that the model cannot take."""
        if not ids:
            raise Refusal("The decoder prompt cannot be empty")
        if len(ids) > self.max_model_len:
            # vLLM stops tokenizing one token past the limit, so it cannot tell that length from a longer one.
            qualifier = "at least " if len(ids) == self.max_model_len + 1 else ""
            raise Refusal(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt "
                f"contains {qualifier}{len(ids)} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt.",
                "input_tokens",
                len(ids),
            )
        # Embeddings have no row for an id that only the tokenizer knows, so the model's rows decide.
        if max(ids) >= self.vocab_size:
            raise Refusal(f"Token id {max(ids)} is out of vocabulary")

    def job(self, prompt_ids: list[int], options: SamplingOptions, done: Any) -> Job:
        """A job for ``prompt_ids``, its sequences seeded as in vLLM: the request's seed plus the index."""
        job = Job(prompt_ids, options, done)
        for index in range(options.n):
            seed = self.seeds.getrandbits(63) if options.seed is None else options.seed + index
            stream = self.codec.stream(prompt_ids, skip_special_tokens=options.skip_special_tokens)
            job.sequences.append(Sequence(job, index, new_generator(seed), stream))
        return job

    async def run(self, prompts: Many[list[int]], options: Many[SamplingOptions]) -> list[Job]:
        """Run one job a prompt to its end; raises Refusal when one of them failed."""
        loop = asyncio.get_running_loop()
        finished = [loop.create_future() for _ in prompts]

        def settle(future: asyncio.Future[None]) -> None:
            if not future.done():
                future.set_result(None)

        jobs = [
            self.job(ids, option, lambda _, future=future: loop.call_soon_threadsafe(settle, future))
            for ids, option, future in zip(prompts, options, finished, strict=True)
        ]
        for job in jobs:
            self.scheduler.submit(job)
        try:
            await asyncio.gather(*finished)
        finally:
            for job, future in zip(jobs, finished, strict=True):
                if not future.done() or future.cancelled():
                    self.scheduler.cancel(job)
        for job in jobs:
            if job.error is not None:
                raise failure(str(job.error) or type(job.error).__name__) from job.error
        return jobs

"""Scores sequences with a vLLM engine: one request of the engine a sequence, its flat logprobs as arrays."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import vllm
from numpy.typing import NDArray
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind

from atroposlib.teacher.binary import ServerFacts, selected_first
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.serving import off_loop
from atroposlib.types import ABSENT_ID, TeacherScores

if TYPE_CHECKING:
    from vllm.engine.protocol import EngineClient
    from vllm.logprobs import FlatLogprobs
    from vllm.outputs import RequestOutput


class VllmScorer:
    """A vLLM engine as :class:`atroposlib.teacher.serving.ScoringServer`."""

    def __init__(self, engine: EngineClient, names: Sequence[str]) -> None:
        self.names = names
        self._engine = engine
        self._server = f"vllm {vllm.__version__}"
        self._facts: ServerFacts | None = None
        self._trying = asyncio.Lock()

    @property
    def tokenizer_source(self) -> tuple[str, str | None]:
        """What vLLM has loaded the tokenizer from."""
        model = self._engine.model_config
        return model.tokenizer, model.tokenizer_revision

    async def facts(self) -> ServerFacts:
        """What the engine can; that it scores ids that the caller names is tried once."""
        async with self._trying:
            if self._facts is None:
                model = self._engine.model_config
                vocabulary = model.get_vocab_size()
                self._facts = ServerFacts(
                    server=self._server,
                    model=self.names[0],
                    max_model_len=model.max_model_len,
                    max_k=vocabulary if model.max_logprobs == -1 else model.max_logprobs,
                    vocab_size=vocabulary,
                    extra_ids=await self._scores_named_ids(),
                )
            return self._facts

    async def score(self, questions: Sequence[Question]) -> list[TeacherScores]:
        """The scores of all questions; when one fails, or this is cancelled, the others are aborted."""
        tasks = [asyncio.create_task(self._score(question)) for question in questions]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _score(self, question: Question) -> TeacherScores:
        # A top-k of more than the vocabulary would fail in the engine.
        k = min(question.k, self._engine.model_config.get_vocab_size())
        options: dict[str, Any] = {"prompt_logprobs": k, "flat_logprobs": True}
        if question.extra_ids is not None:
            options |= _named(question)
        output = await self._generate(question, options)
        size = len(question.ids) * (k + 1)
        return await off_loop(size, lambda: self._read(output, question, k))

    async def _generate(self, question: Question, options: dict[str, Any]) -> RequestOutput:
        """The finished request of the engine; leaving it early aborts the request."""
        sampling = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **options,
        )
        prompt = tokens_input(question.ids.tolist())
        outputs = self._engine.generate(prompt, sampling, f"atropos-{uuid.uuid4().hex}")
        return [output async for output in outputs][-1]

    def _read(self, output: RequestOutput, question: Question, k: int) -> TeacherScores:
        ids, logprobs = flat_rows(output.prompt_logprobs, question, k)
        ids, logprobs = selected_first(ids, logprobs, question.k)
        extra = None
        if question.extra_ids is not None:
            scored = output.prompt_token_id_logprobs
            extra = np.where(question.extra_ids == ABSENT_ID, np.nan, scored).astype(np.float32)
        return TeacherScores(
            ids, logprobs, question.start, self.names[0], server=self._server, extra_logprobs=extra
        )

    async def _scores_named_ids(self) -> bool:
        """Whether this model runner takes ids that the caller names; others refuse them at once."""
        one = np.zeros((1, 1), np.int32)
        question = Question(np.zeros(2, np.int32), 0, 1, one)
        try:
            output = await self._generate(question, _named(question))
        except (VLLMClientError, ValueError, TypeError):
            return False
        return output.prompt_token_id_logprobs is not None


def _named(question: Question) -> dict[str, Any]:
    # vLLM counts the rows by the position whose logits they are of, one before the position that is scored.
    return {"prompt_logprob_token_ids": question.extra_ids, "prompt_logprob_start": question.start - 1}


def flat_rows(
    flat: FlatLogprobs, question: Question, k: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and logprobs [R, k + 1] of a question: the token that stands there, then the top-k.

    Raises:
        RuntimeError: There are not T rows, or not k + 1 members in each, so vLLM's lists are not what they
            are taken for.
    """
    begins, ends = np.array(flat.start_indices), np.array(flat.end_indices)
    rows = slice(question.start, len(question.ids))
    first = int(begins[question.start])
    expected = first + (k + 1) * np.arange(len(question.ids) - question.start)
    if (
        len(begins) != len(question.ids)
        or (begins[rows] != expected).any()
        or (ends[rows] != expected + k + 1).any()
    ):
        raise RuntimeError(f"vLLM's prompt logprobs are not {len(question.ids)} rows of {k + 1} members")
    members = slice(first, int(ends[-1]))
    ids = np.array(flat.token_ids[members], np.int32).reshape(-1, k + 1)
    logprobs = np.array(flat.logprobs[members], np.float32).reshape(-1, k + 1)
    return ids, logprobs

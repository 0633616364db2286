"""The routes of /v1/atropos: prompts scored from a start on, with ids that the caller names, as bytes."""

from __future__ import annotations

from collections.abc import Sequence as Many
from importlib.metadata import version

from fastapi import Request

from atroposlib.modelserver.http import served
from atroposlib.modelserver.served import ServedModel
from atroposlib.modelserver.work import Job, SamplingOptions
from atroposlib.teacher.binary import ServerFacts, selected_first
from atroposlib.teacher.protocol import Question
from atroposlib.teacher.serving import scores_router
from atroposlib.types import TeacherScores


class ModelScorer:
    """A served model as :class:`atroposlib.teacher.serving.ScoringServer`."""

    def __init__(self, model: ServedModel) -> None:
        self.names = (model.name,)
        self._model = model
        self._server = f"atropos {version('atroposlib')}"

    @property
    def tokenizer_source(self) -> tuple[str, str | None]:
        """What the tokenizer was loaded from; the weights may have come from elsewhere since."""
        return self._model.codec.source, None

    async def facts(self) -> ServerFacts:
        """What it can."""
        model = self._model
        return ServerFacts(
            server=self._server,
            model=model.name,
            max_model_len=model.max_model_len,
            max_k=model.vocab_size if model.max_logprobs == -1 else model.max_logprobs,
            vocab_size=model.vocab_size,
            extra_ids=True,
        )

    async def score(self, questions: Many[Question]) -> list[TeacherScores]:
        """The scores of all questions, which share a forward pass where they fit into one."""
        options = [
            SamplingOptions(
                max_tokens=1,
                temperature=0.0,
                prompt_logprobs=min(question.k, self._model.vocab_size),
                scored_from=question.start,
                named_ids=question.extra_ids,
            )
            for question in questions
        ]
        jobs = await self._model.run([question.ids.tolist() for question in questions], options)
        return [self._read(job, question) for job, question in zip(jobs, questions, strict=True)]

    def _read(self, job: Job, question: Question) -> TeacherScores:
        scores = job.prompt_scores
        if scores is None:
            raise RuntimeError("the prompt was not scored")
        ids, logprobs = selected_first(scores.ids, scores.logprobs, question.k)
        named = scores.named if question.extra_ids is not None else None
        return TeacherScores(
            ids, logprobs, question.start, self.names[0], server=self._server, extra_logprobs=named
        )


def _scorer(request: Request) -> ModelScorer:
    return ModelScorer(served(request))


router = scores_router(_scorer)

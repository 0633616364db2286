"""ServerManager: what environments sample from and score with, over one or several model servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from atroposlib.config.server import APIServerConfig, ServerBaseline, ServerManagerConfig
from atroposlib.config.teacher import TeacherLimits
from atroposlib.envs.server_handling.addresses import server_configs
from atroposlib.envs.server_handling.managed_server import ManagedServer
from atroposlib.envs.server_handling.pool import ServerPool, together
from atroposlib.envs.server_handling.replies import ChatCompletion, TextCompletion
from atroposlib.envs.server_handling.server import Server, Split
from atroposlib.envs.server_handling.split import join_replies, join_samples, single_requests
from atroposlib.envs.server_handling.student import STUDENT, chat_once, sample_once, text_once
from atroposlib.envs.server_handling.tokenizers import load_tokenizer
from atroposlib.envs.server_handling.weight_version import read_version, step_of
from atroposlib.errors import ConfigError, UsageError
from atroposlib.teacher.persistence import PATIENCE_S, Passing, persist
from atroposlib.teacher.scores import to_lists
from atroposlib.teacher.served_tokenizer import tokenize_once
from atroposlib.teacher.teacher import Teacher
from atroposlib.teacher.transport import TEACHER, Peer
from atroposlib.types import Completion, TeacherScores

__all__ = ["APIServerConfig", "ServerBaseline", "ServerManager", "ServerManagerConfig"]

T = TypeVar("T")


class ServerManager:
    """Requests to a pool of model servers that serve the same model.

    Every request goes to the least loaded healthy server and is repeated while its failure may pass. The
    keyword ``split="eval"`` counts it against ``num_requests_for_eval`` and not against
    ``num_max_requests_at_once``.

    Logprobs of sampled tokens are the server's own. vLLM's default (``--logprobs-mode raw_logprobs``) is the
    model's distribution at temperature 1, before top_p and penalties: an importance ratio against it is
    exact for samples drawn at temperature 1 with top_p 1. For other settings start the student with
    ``--logprobs-mode processed_logprobs`` and apply the same temperature to the trainer's logits.

    Prompts are scored by a :class:`atroposlib.teacher.teacher.Teacher` over the same servers.

    Args:
        configs: The servers; see :func:`atroposlib.envs.server_handling.addresses.server_configs`.
        slurm: Take the addresses from the Slurm job.
        testing: No servers; every request is refused.
        patience_s: Seconds over which a request is repeated while no server can take it.
        teacher: Whether the servers are a teacher's. Their weights never change then, so that one which
            comes back with other weights is set aside, and they may be SGLang's.
    """

    def __init__(
        self,
        configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
        *,
        patience_s: float = PATIENCE_S,
        teacher: bool = False,
    ) -> None:
        self._configs = [] if testing else server_configs(configs, slurm=slurm, teacher=teacher)
        self._pool = ServerPool(self._configs, patience_s=patience_s)
        self._patience_s = patience_s
        self._are_teachers = teacher
        self._teacher: Teacher | None = None
        self._tokenizer: Any = None
        self._version_answered = False

    @property
    def servers(self) -> list[Server]:
        """The servers of the pool, in the order of their configs."""
        return self._pool.servers

    async def chat_completion(self, **kwargs: Any) -> ChatCompletion:
        """``/v1/chat/completions`` with OpenAI's keywords; the server applies its chat template.

        Raises:
            StudentError: Refused, failed, unreachable, or an answer of another shape.
        """
        return join_replies(await self._ask_each(chat_once, kwargs))

    async def completion(self, **kwargs: Any) -> TextCompletion:
        """``/v1/completions`` with OpenAI's keywords.

        Raises:
            StudentError: Refused, failed, unreachable, or an answer of another shape.
        """
        return join_replies(await self._ask_each(text_once, kwargs))

    async def sample(self, prompt: Sequence[int] | str, **kwargs: Any) -> Completion:
        """Sampled ids and logprobs after ``prompt``; keywords as for :meth:`completion`.

        A text prompt is tokenized once, by the server. A sample that the server broke off (a pause with
        mode=abort) is drawn again with all choices of its request, never handed out as complete.

        Raises:
            StudentError: Also student.no_token_ids when the server cannot say which ids it sampled.
        """
        asked = prompt if isinstance(prompt, str) else list(prompt)
        return join_samples(await self._ask_each(sample_once, {**kwargs, "prompt": asked}))

    async def tokens_and_logprobs_completion(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[str]]:
        """:meth:`sample` of ``input_ids`` or ``prompt`` as Atropos returns it.

        Returns:
            Prompt ids, and for each choice the sampled ids, their logprobs (nats) and the finish reason.
        """
        drawn = await self.sample(_prompt(kwargs), **_without(kwargs, "input_ids", "prompt"))
        return drawn.prompt_ids, drawn.token_ids, drawn.logprobs, drawn.finish_reasons

    async def score(self, ids: Sequence[int], top_k: int, start: int = 1) -> TeacherScores:
        """The pool's model as a teacher: see :meth:`atroposlib.teacher.teacher.Teacher.score`."""
        return await self._as_teacher().score(ids, top_k, start)

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """The pool's model as a teacher, answered as Atropos does.

        Args:
            **kwargs: ``input_ids`` or ``prompt`` (T tokens) and ``top_k`` (default 0). ``max_tokens`` and
                ``split`` have no effect: what scoring samples is forgotten, and all of it is bounded by
                ``num_max_requests_at_once``.

        Returns:
            ``prompt_tokens`` [T], ``prompt_topk_token_ids`` [T][K] and ``prompt_topk_logprobs`` [T][K] with
            K = top_k + 1 columns as in :class:`atroposlib.types.TeacherScores`; row 0 is all absent
            (-1 and -9999.0).

        Raises:
            TeacherError: As :meth:`atroposlib.teacher.teacher.Teacher.score`.
        """
        prompt = _prompt(kwargs)
        ids = await self._tokenize(prompt, _split(kwargs)) if isinstance(prompt, str) else list(prompt)
        scores = await self.score(ids, int(kwargs.get("top_k") or 0))
        token_ids, logprobs = to_lists(scores, len(ids))
        return {"prompt_tokens": ids, "prompt_topk_token_ids": token_ids, "prompt_topk_logprobs": logprobs}

    async def policy_version(self) -> int | None:
        """The oldest weights among the servers that answer, as a step: ``step-<n>`` is n, ``default`` is 0.

        None where a server has no ``/weight_info`` (a vLLM without dev mode; asked once) or names its weights
        in another way, which says nothing about their order. Servers that answered before are waited for;
        where none ever did (an environment may need no server at all), that is told at once.

        Raises:
            StudentError: No server answers.
        """

        async def once() -> int | None:
            results = await together([self._version_of(server) for server in self.servers])
            versions = [result for result in results if not isinstance(result, Passing)]
            if results and not versions:
                raise next(result for result in results if isinstance(result, Passing))
            self._version_answered = True
            steps = [step for step in versions if step is not None]
            return min(steps, default=None) if len(steps) == len(versions) else None

        return await persist(once, patience_s=self._patience_s if self._version_answered else 0.0)

    async def _version_of(self, server: Server) -> int | Passing | None:
        if not server.has_version:
            return None
        try:
            version = await read_version(self._pool.session, server.peer(STUDENT))
        except Passing as failure:
            return failure
        server.has_version = version is not None
        return None if version is None else step_of(version)

    @asynccontextmanager
    async def managed_server(self, tokenizer: Any = None) -> AsyncIterator[ManagedServer]:
        """A :class:`ManagedServer` of its own for one rollout; several at once know nothing of each other.

        Args:
            tokenizer: The student's Hugging Face tokenizer; the first config's is loaded when None.
        """
        if tokenizer is None:
            if self._tokenizer is None:
                self._tokenizer = await load_tokenizer(self._configs[0])
            tokenizer = self._tokenizer
        yield ManagedServer(self, tokenizer)

    def metrics(self) -> dict[str, float]:
        """``server_<i>/<name>`` of every server: see :meth:`Server.metrics`; and what was scored."""
        told = {
            f"server_{index}/{name}": value
            for index, server in enumerate(self.servers)
            for name, value in server.metrics().items()
        }
        return told if self._teacher is None else told | self._teacher.stats.metrics()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()
        if self._teacher is not None:
            await self._teacher.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _as_teacher(self) -> Teacher:
        if not self._configs:
            raise ConfigError("there is no model server to ask", fix="run without testing")
        if self._teacher is None:
            limits = TeacherLimits(patience_s=self._patience_s)
            name = "teacher" if self._are_teachers else "student"
            self._teacher = Teacher(name, self._configs, limits, steady=self._are_teachers)
        return self._teacher

    async def _tokenize(self, text: str, split: Split) -> list[int]:
        async def once(session: aiohttp.ClientSession, peer: Peer) -> list[int]:
            return await tokenize_once(session, peer, text)

        return await self._pool.dispatch(TEACHER, split, once)

    async def _ask_each(
        self,
        ask: Callable[[aiohttp.ClientSession, Peer, Mapping[str, Any]], Awaitable[T]],
        kwargs: Mapping[str, Any],
    ) -> list[T]:
        split = _split(kwargs)
        params = _without(kwargs, "split")
        ignores_n = any(config.n_kwarg_is_ignored for config in self._configs)
        requests = single_requests(params) if ignores_n else [params]

        def send(request: Mapping[str, Any]) -> Coroutine[Any, Any, T]:
            return self._pool.dispatch(STUDENT, split, lambda session, peer: ask(session, peer, request))

        return await together([send(request) for request in requests])


def _split(kwargs: Mapping[str, Any]) -> Split:
    return "train" if kwargs.get("split", "train") == "train" else "eval"


def _prompt(kwargs: Mapping[str, Any]) -> Sequence[int] | str:
    prompt = kwargs.get("input_ids")
    if prompt is None:
        prompt = kwargs.get("prompt")
    if prompt is None:
        raise UsageError("a request without a prompt", expected="input_ids or prompt")
    return prompt  # type: ignore[no-any-return]  # the caller's own value


def _without(kwargs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in names}

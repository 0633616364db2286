"""ManagedServer: chat and text completion that keep the exact ids, masks and logprobs of what was sampled."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from atroposlib.envs.server_handling.prompts import (
    Prompt,
    SequenceNode,
    Turn,
    chat_prompt,
    ids_prompt,
    text_prompt,
)
from atroposlib.envs.server_handling.replies import (
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    TextChoice,
    TextCompletion,
    Usage,
)
from atroposlib.types import Completion

__all__ = ["ManagedServer", "SequenceNode"]


class Sampler(Protocol):
    """What a ManagedServer samples from; ServerManager is one."""

    async def sample(self, prompt: Sequence[int] | str, **kwargs: Any) -> Completion:
        """Sampled ids and logprobs after ``prompt``."""

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """The model's logprobs of a prompt."""


class ManagedServer:
    """Tracks the sequences of one rollout, one node a conversation.

    The prompt is tokenized here, once; only ids go to the server and come back. When messages continue an
    earlier reply, its node is extended: the sampled ids are reused as they are, keep their masks and
    logprobs, and stay trained. Concurrent calls on one ManagedServer are fine.

    Args:
        server: Where to sample from.
        tokenizer: The student's Hugging Face tokenizer.
    """

    def __init__(self, server: Sampler, tokenizer: Any) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self._nodes: list[SequenceNode] = []
        self._turns: list[Turn] = []

    async def chat_completion(
        self,
        *,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> ChatCompletion:
        """Sample ``n`` replies to ``messages``; other keywords are the server's (max_tokens, ...).

        Raises:
            StudentError: As :meth:`ServerManager.sample`.
        """
        template = {**(chat_template_kwargs or {}), **({"tools": list(tools)} if tools else {})}
        prompt = chat_prompt(self.tokenizer, messages, self._turns, **template)
        drawn = await self.server.sample(prompt.ids, **kwargs)
        self._record(prompt, drawn, [dict(message) for message in copy.deepcopy(list(messages))])
        choices = [
            ChatChoice(index=index, message=ChatMessage(content=text), finish_reason=reason)
            for index, (text, reason) in enumerate(zip(drawn.texts, drawn.finish_reasons, strict=True))
        ]
        return ChatCompletion(choices=choices, usage=_usage(drawn))

    async def completion(self, *, prompt: str | Sequence[int], **kwargs: Any) -> TextCompletion:
        """Sample ``n`` continuations of a text or of token ids; other keywords are the server's.

        Raises:
            StudentError: As :meth:`ServerManager.sample`.
        """
        if isinstance(prompt, str):
            made = text_prompt(self.tokenizer, prompt, self._turns)
        else:
            made = ids_prompt(self.tokenizer, prompt, self._turns)
        drawn = await self.server.sample(made.ids, **kwargs)
        self._record(made, drawn, None)
        choices = [
            TextChoice(index=index, text=text, finish_reason=reason)
            for index, (text, reason) in enumerate(zip(drawn.texts, drawn.finish_reasons, strict=True))
        ]
        return TextCompletion(choices=choices, usage=_usage(drawn))

    async def get_logprobs(self, **kwargs: Any) -> dict[str, Any]:
        """The server's logprobs of a prompt; tracks nothing."""
        return await self.server.get_logprobs(**kwargs)

    def get_state(self) -> dict[str, list[SequenceNode]]:
        """``{"nodes": [...]}``: one node a conversation, in the order of the first sample in each."""
        return {"nodes": list(self._nodes)}

    def reset(self) -> None:
        """Forget all sequences."""
        self._nodes.clear()
        self._turns.clear()

    def _record(self, prompt: Prompt, drawn: Completion, messages: list[dict[str, Any]] | None) -> None:
        nodes = [_node(prompt, drawn, choice) for choice in range(len(drawn.token_ids))]
        self._turns += [
            Turn(node, prompt.text, text, reason, messages)
            for node, text, reason in zip(nodes, drawn.texts, drawn.finish_reasons, strict=True)
        ]
        old = prompt.parent.node if prompt.parent is not None else None
        # By identity: two samples may have drawn the same ids.
        at = next((index for index, node in enumerate(self._nodes) if node is old), None)
        if at is None:
            self._nodes += nodes
        else:
            self._nodes[at : at + 1] = nodes


def _node(prompt: Prompt, drawn: Completion, choice: int) -> SequenceNode:
    sampled = drawn.token_ids[choice]
    return SequenceNode(
        full_text=prompt.text + drawn.texts[choice],
        tokens=prompt.ids + sampled,
        masked_tokens=prompt.masks + sampled,
        logprobs=prompt.logprobs + drawn.logprobs[choice],
        metadata={"finish_reason": drawn.finish_reasons[choice]},
    )


def _usage(drawn: Completion) -> Usage:
    sampled = sum(map(len, drawn.token_ids))
    read = len(drawn.prompt_ids)
    return Usage(prompt_tokens=read, completion_tokens=sampled, total_tokens=read + sampled)
